"""Describes a picture in one sentence: drawn shapes by rules, photographs by a classifier."""
