"""Models that satisfy `parley.engine.model.Model`."""
