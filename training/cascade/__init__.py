"""The recipe of the cascade's bundled weights: language model, voice, recogniser, eyes."""
