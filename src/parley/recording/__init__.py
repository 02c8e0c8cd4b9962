"""What stays of a conversation."""
