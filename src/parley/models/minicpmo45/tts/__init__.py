"""The speech decoder (`tts`): text states to speech tokens."""
