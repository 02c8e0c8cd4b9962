"""One process, one device, one engine."""
