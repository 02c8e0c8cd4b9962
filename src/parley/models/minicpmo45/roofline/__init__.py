"""What a unit costs on paper: steps run on tensors without memory, and counted."""
