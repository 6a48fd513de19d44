"""tokentrace: one prompt, one trace, eight layers, both ways."""

from __future__ import annotations

__version__ = "0.1.0"
