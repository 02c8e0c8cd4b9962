"""The REST side: one module per subject, each a function from the house to its routes."""
