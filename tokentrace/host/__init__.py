"""This machine: what it is called, and what its kernel says of the processes on it (`proc`)."""

from __future__ import annotations

from tokentrace.host.name import this_host

__all__ = ["this_host"]
