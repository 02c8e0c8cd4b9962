"""Data only: see `parley.models.cascade.loader`."""
