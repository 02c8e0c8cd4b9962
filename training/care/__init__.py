"""The judge of danger: see README.md in this folder."""
