"""MiniCPM-o 4.5, composed on transformers."""
