"""The voice: reading, sounds, an acoustic model and a synthesiser."""
