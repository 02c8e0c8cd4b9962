"""The steps of MiniCPM-o, one module per kind; every step runs all jobs of its stage together."""
