"""The local engine: a small real model behind an OpenAI-compatible server."""
