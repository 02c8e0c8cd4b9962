"""OpenAI Realtime (GA): see `dialect`."""

from parley.dialects.openai_realtime.dialect import OpenAIRealtimeDialect

__all__ = ["OpenAIRealtimeDialect"]
