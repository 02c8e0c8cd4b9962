"""The wire, pure: messages, phases and close codes. No sockets, no numpy, no torch."""
