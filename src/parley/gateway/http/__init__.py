"""REST routes, one file per subject."""
