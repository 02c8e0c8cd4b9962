"""The cost of a unit of MiniCPM-o 4.5 on a card, counted on tensors without memory."""
