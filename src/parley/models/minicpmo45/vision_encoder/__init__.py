"""The vision encoder (`vpm` and `resampler`): pictures to context tokens."""
