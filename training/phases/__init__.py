"""The phases of training, one file each; `training/pocket.py` runs them in order."""
