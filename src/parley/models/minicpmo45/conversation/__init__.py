"""What one conversation is: its state, and its pieces of work as rows of steps."""
