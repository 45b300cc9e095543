"""Latency logs: their format, where they are, and what is in them."""
