"""How written forms are spoken: rules in the order in which `voice/reading.py` applies them."""
