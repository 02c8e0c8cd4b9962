"""System prompts for voices: the text around the reference audio.

Source: sessions.md 2.7; the model was trained with this wording.
"""

from __future__ import annotations

from typing import Literal

from parley.media.pcm import Pcm
from parley.protocol.values import VOICE_PROMPT, TextPart, TtsMode
from parley.views.content import AudioPart, Message, Part, has_audio

Language = Literal["en", "zh"]

_IMITATE_ZH = "模仿音频样本的音色并生成新的内容。"
_CLONE_ZH = "模仿输入音频中的声音特征。"
_CLONE_EN = "Clone the voice in the provided audio prompt."

_AROUND: dict[tuple[TtsMode, Language], tuple[str, str]] = {
    ("omni", "en"): (_CLONE_EN, "As an assistant, you will speak using this voice style."),
    ("omni", "zh"): (
        _IMITATE_ZH,
        "请用这种声音风格来为用户提供帮助。 请认真、高质量地回复用户的问题。 "
        "请用高自然度的方式和用户聊天。",
    ),
    ("audio_assistant", "en"): (
        "Use the voice in the audio prompt to synthesize new content.",
        "You are a helpful assistant with the above voice style.",
    ),
    ("audio_assistant", "zh"): (
        _IMITATE_ZH,
        "你的任务是用这种声音模式来当一个助手。请认真、高质量地回复用户的问题。"
        "请用高自然度的方式和用户聊天。你是由面壁智能开发的人工智能助手：面壁小钢炮。",
    ),
    ("audio_roleplay", "en"): (
        _CLONE_EN,
        "Try to role-play the character based on the audio prompt above.",
    ),
    ("audio_roleplay", "zh"): (_CLONE_ZH, "假装你是上述音频中的人物，与我进行对话。"),
    ("voice_cloning", "en"): (_CLONE_EN, ""),
    ("voice_cloning", "zh"): (_CLONE_ZH, ""),
}

RESERVED_VOICE = "Use the <reserved_53> voice."
"""Represents the model's own voice if no reference is given."""


def with_voice(message: Message, voice: Pcm | None) -> Message:
    """A system message with a voice at its start, unless it already contains audio."""
    if voice is None or has_audio(message):
        return message
    return Message(message.role, (TextPart(VOICE_PROMPT), AudioPart(voice), *message.parts))


def system_message(mode: TtsMode, voice: Pcm | None, language: str | None) -> Message | None:
    """The system message for a request that has none.

    None if nothing is added: mode `default`, and `voice_cloning` without a voice to clone. Any
    language that does not start with `zh` is treated as English.
    """
    if mode == "default":
        return None
    tongue: Language = "zh" if (language or "").lower().startswith("zh") else "en"
    prefix, suffix = _AROUND[mode, tongue]
    if voice is not None:
        parts: list[Part] = [TextPart(prefix), AudioPart(voice)]
        return Message("system", tuple([*parts, TextPart(suffix)] if suffix else parts))
    match mode:
        case "omni":
            return Message.of("system", "")
        case "voice_cloning":
            return None
        case _:
            return Message.of("system", RESERVED_VOICE, suffix)
