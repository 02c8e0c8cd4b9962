"""Shared building blocks of all parts: slot caches, attention, captured graphs, random numbers."""
