"""Reference voices and presets, kept as files."""
