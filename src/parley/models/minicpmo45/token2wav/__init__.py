"""The vocoder (`assets/token2wav`): converts speech tokens and a voice to audio."""
