"""Doctor: which layer is broken, and what to type."""
