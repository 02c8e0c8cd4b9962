"""How workers come to exist."""
