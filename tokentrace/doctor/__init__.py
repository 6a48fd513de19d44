"""Checks, one small function each."""
