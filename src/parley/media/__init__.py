"""Media as values: samples with their rate, images, clips. No torch, no sockets."""
