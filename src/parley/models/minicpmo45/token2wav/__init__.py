"""The vocoder (`assets/token2wav`): speech tokens and a voice to sound."""
