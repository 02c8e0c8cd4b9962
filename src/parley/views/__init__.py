"""The model used in one of three ways, over one seat."""
