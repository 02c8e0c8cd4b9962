"""Rules that replace written forms with spoken ones; `voice/reading.py` applies them in order."""
