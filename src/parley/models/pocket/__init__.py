"""The pocket model: the classes of `minicpmo45` at a small size, with its own vocoder."""
