"""Messages to events and back, one module per dialect, nothing else."""
