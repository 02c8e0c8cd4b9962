"""Several conversations on one device; knows no network."""
