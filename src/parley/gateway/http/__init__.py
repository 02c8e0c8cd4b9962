"""The REST API: one module per subject, each a function that returns the routes of a server."""
