"""Starts and supervises workers."""
