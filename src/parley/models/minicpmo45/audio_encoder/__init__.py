"""The audio encoder (`apm`): audio to context tokens."""
