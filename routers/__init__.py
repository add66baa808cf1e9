"""Routers: which ready replica gets a request."""
