"""What a unit of MiniCPM-o 4.5 takes of a card, counted on tensors without memory."""
