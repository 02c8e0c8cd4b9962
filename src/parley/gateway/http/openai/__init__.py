"""The HTTP interfaces of OpenAI's clients: chat completions, models, speech, transcriptions."""
