"""parley: real-time voice and video conversation with one model and many people."""

__version__ = "0.1.0"
