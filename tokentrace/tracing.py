"""Tracing: `with tokentrace.trace(...)` around a program of the user."""
