"""Signals as values: samples that know their rate, images, clips. No torch, no sockets."""
