"""The language model (`llm`): Qwen3 over slot caches, its steps, and the choice of text tokens."""
