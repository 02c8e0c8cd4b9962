"""Recordings: what is stored of a conversation."""
