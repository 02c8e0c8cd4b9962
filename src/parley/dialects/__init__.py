"""Public protocols: one class each, found by one registry. Start reading at `base.py`."""
