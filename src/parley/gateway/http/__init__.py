"""The REST side: one module per subject, each a function from the server to its routes."""
