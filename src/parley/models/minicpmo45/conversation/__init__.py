"""One conversation: its state, and its pieces of work as rows of steps."""
