"""The Python client: one class per dialect, asynchronous, with a synchronous facade."""
