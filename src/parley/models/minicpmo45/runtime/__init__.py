"""What every part computes with: slot caches, attention, captured graphs, random numbers."""
