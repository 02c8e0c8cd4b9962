"""The audio encoder (`apm`): sound to context tokens."""
