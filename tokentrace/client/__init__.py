"""The client side of a request: settings, the HTTP exchange, server-sent events."""
