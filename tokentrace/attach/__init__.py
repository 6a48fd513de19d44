"""Attach: look into a server that somebody else started, without restarting it."""
