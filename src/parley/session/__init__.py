"""The life of one conversation: phases, drivers, translation to and from the wire."""
