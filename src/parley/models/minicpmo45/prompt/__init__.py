"""Chat template, placeholders and media: from segments to what the language model is fed."""
