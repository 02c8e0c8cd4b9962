"""The REST API: one module per subject, each with a function that returns its routes."""
