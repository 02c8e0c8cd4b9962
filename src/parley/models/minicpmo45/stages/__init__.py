"""The steps of MiniCPM-o, a module for each kind; every one runs all jobs of its stage together."""
