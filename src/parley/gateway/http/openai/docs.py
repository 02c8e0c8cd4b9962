"""Bodies and answers of the OpenAI routes for `/openapi.json`, where no model describes them."""

from __future__ import annotations

from typing import Any, Final

_HEAD: Final[dict[str, Any]] = {
    "id": "chatcmpl-0123456789abcdef01234567",
    "created": 1795283000,
    "model": "pocket",
}

_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "One event; its data is JSON, or `[DONE]`.",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}

COMPLETION_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "messages"],
                    "properties": {
                        "model": {"type": "string"},
                        "messages": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["role"],
                                "properties": {
                                    "role": {"enum": ["system", "developer", "user", "assistant"]},
                                    "content": {
                                        "description": "words, or parts: text, image_url, "
                                        "input_audio, video_url (ours)",
                                        "oneOf": [
                                            {"type": "string"},
                                            {"type": "array", "items": {"type": "object"}},
                                        ],
                                    },
                                },
                            },
                        },
                        "stream": {"type": "boolean", "default": False},
                        "stream_options": {"type": "object"},
                        "modalities": {"type": "array", "items": {"enum": ["text", "audio"]}},
                        "audio": {
                            "type": "object",
                            "description": "voice, and format: wav, pcm16, mp3, flac, opus",
                        },
                        "max_completion_tokens": {"type": "integer", "minimum": 1},
                        "max_tokens": {"type": "integer", "minimum": 1},
                        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
                        "seed": {"type": "integer"},
                        "stop": {
                            "oneOf": [
                                {"type": "string"},
                                {"type": "array", "items": {"type": "string"}, "maxItems": 4},
                            ]
                        },
                        "n": {"enum": [1, None]},
                    },
                },
                "example": {
                    "model": "pocket",
                    "messages": [{"role": "user", "content": "What is the capital of Italy?"}],
                },
            }
        },
    }
}

COMPLETION_ANSWER: Final[dict[str, Any]] = {
    "description": "The answer; with `stream` in pieces, the last of which is `[DONE]`.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["id", "object", "choices", "usage"]},
            "example": {
                **_HEAD,
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "role": "assistant",
                            "content": "The capital of Italy is Rome.",
                            "refusal": None,
                        },
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
            },
        },
        "text/event-stream": {"schema": _EVENT},
    },
}

SPEECH_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "input", "voice"],
                    "properties": {
                        "model": {"type": "string"},
                        "input": {"type": "string", "minLength": 1, "maxLength": 4096},
                        "voice": {"oneOf": [{"type": "string"}, {"type": "object"}]},
                        "response_format": {
                            "enum": ["mp3", "opus", "aac", "flac", "wav", "pcm"],
                            "default": "mp3",
                        },
                        "speed": {"type": "number", "minimum": 0.25, "maximum": 4, "default": 1},
                        "stream_format": {"enum": ["audio", "sse"], "default": "audio"},
                    },
                },
                "example": {
                    "model": "pocket",
                    "input": "The capital of Italy is Rome.",
                    "voice": "default",
                    "response_format": "wav",
                },
            }
        },
    }
}

SPEECH_ANSWER: Final[dict[str, Any]] = {
    "description": "The sound as it is made, 24 kHz mono.",
    "content": {
        name: {"schema": {"type": "string", "format": "binary"}}
        for name in ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm")
    }
    | {"text/event-stream": {"schema": _EVENT}},
}

TRANSCRIPTION_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "model"],
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "a sound file of any common format, at most 25 MB",
                        },
                        "model": {"type": "string", "maxLength": 200},
                        "response_format": {
                            "enum": ["json", "text", "verbose_json", "srt", "vtt"],
                            "default": "json",
                        },
                        "stream": {"type": "boolean", "default": False},
                        "prompt": {
                            "type": "string",
                            "description": "ignored: the model takes no hints",
                        },
                        "language": {
                            "type": "string",
                            "description": "ignored: the model finds out",
                        },
                        "temperature": {
                            "type": "number",
                            "description": "ignored: the likeliest words",
                        },
                    },
                }
            }
        },
    }
}

TRANSCRIPTION_ANSWER: Final[dict[str, Any]] = {
    "description": "The words, as JSON, as plain text or as events.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["text"]},
            "example": {"text": "What is the capital of Italy?"},
        },
        "text/plain": {"example": "What is the capital of Italy?\n"},
        "text/event-stream": {"schema": _EVENT},
    },
}

RESPONSE_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["input"],
                    "properties": {
                        "model": {"type": "string", "maxLength": 200},
                        "input": {
                            "description": "text, or items: messages, function_call, "
                            "function_call_output, item_reference",
                            "oneOf": [
                                {"type": "string"},
                                {"type": "array", "items": {"type": "object"}},
                            ],
                        },
                        "instructions": {"type": "string"},
                        "stream": {"type": "boolean", "default": False},
                        "store": {"type": "boolean", "default": True},
                        "previous_response_id": {"type": "string"},
                        "max_output_tokens": {"type": "integer", "minimum": 1},
                        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
                        "tools": {"type": "array", "items": {"type": "object"}, "maxItems": 128},
                        "tool_choice": {"oneOf": [{"type": "string"}, {"type": "object"}]},
                        "parallel_tool_calls": {"type": "boolean", "default": True},
                        "text": {"type": "object", "description": "format: text, json_schema, …"},
                        "metadata": {"type": "object"},
                    },
                },
                "example": {"model": "pocket", "input": "What is the capital of Italy?"},
            }
        },
    }
}

RESPONSE_ANSWER: Final[dict[str, Any]] = {
    "description": "The response; with `stream` its events.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["id", "object", "status", "output"]},
            "example": {
                "id": "resp_0123456789abcdef0123456789abcdef",
                "object": "response",
                "created_at": 1795283000,
                "status": "completed",
                "model": "pocket",
                "output": [
                    {
                        "id": "msg_0123456789abcdef0123456789abcdef000",
                        "type": "message",
                        "role": "assistant",
                        "status": "completed",
                        "content": [
                            {
                                "type": "output_text",
                                "text": "The capital of Italy is Rome.",
                                "annotations": [],
                                "logprobs": [],
                            }
                        ],
                    }
                ],
                "usage": {"input_tokens": 12, "output_tokens": 7, "total_tokens": 19},
            },
        },
        "text/event-stream": {"schema": _EVENT},
    },
}

DELETED_RESPONSE: Final[dict[str, Any]] = {
    "description": "It is deleted.",
    "content": {
        "application/json": {
            "example": {
                "id": "resp_0123456789abcdef0123456789abcdef",
                "object": "response",
                "deleted": True,
            }
        }
    },
}

INPUT_ITEMS: Final[dict[str, Any]] = {
    "description": "A page of the items.",
    "content": {
        "application/json": {
            "example": {
                "object": "list",
                "data": [
                    {
                        "id": "msg_0123456789abcdef0123456789abcdefi00",
                        "type": "message",
                        "role": "user",
                        "status": "completed",
                        "content": [{"type": "input_text", "text": "Hello!"}],
                    }
                ],
                "first_id": "msg_0123456789abcdef0123456789abcdefi00",
                "last_id": "msg_0123456789abcdef0123456789abcdefi00",
                "has_more": False,
            }
        }
    },
}

CANCELLED_RESPONSE: Final[dict[str, Any]] = {
    "description": "Never: see 400.",
    "content": {"application/json": {"example": {}}},
}
