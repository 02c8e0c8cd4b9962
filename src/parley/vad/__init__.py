"""Is someone speaking?"""
