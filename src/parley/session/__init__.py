"""The session of one conversation: phases, deadlines, runners."""
