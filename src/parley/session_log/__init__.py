"""Append-only logs of running sessions, from which another worker can continue them."""
