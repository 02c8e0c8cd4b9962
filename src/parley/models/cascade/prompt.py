"""The prompt of the bundled language model (ChatML), and the persona in it."""

from __future__ import annotations

import re

from parley.models.cascade.messages import Line, defused

NAME = "Parley"
PERSONA = (
    f"You are {NAME}, a small friendly voice assistant. You answer in one or two short spoken "
    "sentences. You are a program, not a person. If you do not know something, you say so."
)
"""System prompt of conversations without one."""

START, END = "<|im_start|>", "<|im_end|>"


def opening(role: str) -> str:
    """Template text before a turn."""
    return f"{START}{role}\n"


CLOSING = f"{END}\n"
"""Template text after a turn."""


_VOICE = re.compile(
    r"\A\s*(?:(?:clone|imitate|mimic) (?:the|this) voice|use the voice in)\b[^.!\n]*[.!]?\s*", re.I
)
"""A sentence about a voice, which clients and pages send before a prompt."""

_NOT_PROMPTS = (
    "you are a helpful assistant with the above",
    "as an assistant, you will speak using this voice", "try to role-play the character based on "
    "the audio",
    "use the <reserved", "streaming omni conversation", "streaming duplex conversation", "模仿",
    "你的任务是用这种声音", "请用这种声音", "假装你是",
)  # fmt: skip


_GENERIC = re.compile(
    r"(?:you are|you're) an? (?:helpful|friendly|useful|good)?(?: and \w+)? ?(?:ai |voice "
    r"|personal )?assistant"
    r"(?:\W+(?:please )?(?:reply|answer|respond|speak) (?:naturally|briefly|politely|helpfully|in "
    r"english))?\W*"
)
"""Prompts that add nothing to our own, for any language model."""


_COMMON = frozenset(
    """
    a able about above accent accurate accurately act ai aloud also always an and another answer
    answering answers any are aren't as ask asked assist assistant assistants asterisks audio
    avoid be being brief briefly bullet but by call calls camera can can't cannot capabilities
    careful carefully characters chat cheerful clear clearly close closely complex complicated
    concise concisely conversation conversational conversations converted correct creative
    curious cutoff demonstrate detailed dialect direct directly do don't eagerly easy emoji
    emojis engaging english even everyday extensive familiar few for formatting friend friendly
    from function general goal good have headings help helpful helpfully helping helps high
    highly honest honestly human humor humour i i'm if images in include including information
    interacting into is it items its keep kind knowledge language languages like list listen
    lists lively llm long loud maintaining make making manner markdown may message messages
    model most natural naturally need never no non not of on one only or oral other our out
    output own paragraph patient people personality phone pictures plain playful pleasant please
    point polite politely positive precise provide providing punctuation quality question
    questions quick quickly read real refer remember replies reply respond response responses
    rules said same say see send sense sentence sentences seriously short shorter should shows
    simple so something sound speak speaking special speech spoken standard start style succinct
    succinctly such sure symbols talk talking talks text that the their them these they things
    this to tone too truthful two type under understand unless unsure use used useful user
    user's users using very via video voice want wants warm way we webrtc what when whenever
    where while will with without witty words world would write you you're your
    """.split()
)
"""Words of prompts that give neither a role nor facts, such as those that clients and pages send by
default: they are about assistants, users, answers and manners alone."""


_EARLIER = re.compile(
    r"(?:You are continuing an earlier conversation\. It went like this:"
    r"|你在继续之前的一次对话，内容如下：)\n(.*)\Z",
    re.DOTALL,
)
"""What the pages add to the prompt of a call that continues another (`call.carried`)."""


_NAMES = re.compile(
    r"(?:(?i:your name is|you are (?:called|named)|you(?: are|'re)))"
    r" ((?!AI\b)[A-Z][\w'-]*(?: [A-Z][\w'-]*){0,2})(?=[,.;:!]|\s+(?:and|who|from|the)\b|\s*$)"
)


def named(note: str, system: str) -> str:
    """A note with the persona's name, if it has one, in place of ours."""
    found = _NAMES.search(system)
    return note if found is None else note.replace(NAME, found[1])


def split_earlier(prompt: str) -> tuple[str, list[Line]]:
    """A prompt without the earlier conversation that a page appended to it, and the lines of that
    conversation."""
    found = _EARLIER.search(prompt)
    if found is None:
        return prompt, []
    # The oldest line may have lost its beginning.
    said = re.findall(r"^(User|Assistant): (.+)$", defused(found[1]), re.MULTILINE)
    lines = [Line("user" if who == "User" else "assistant", text) for who, text in said]
    return prompt[: found.start()].rstrip(), lines


def persona_of(system: str, *, is_bundled: bool) -> str:
    """The persona: the requested prompt, or our own if that prompt is empty, generic, or only
    describes a voice.

    Args:
        is_bundled: for the bundled model, which cannot follow instructions. Its prompt is generic
            if it gives no role, or is in letters that the model cannot read.
    """
    system = _VOICE.sub("", system)
    low = system.lower().strip()
    is_generic = not low or _GENERIC.fullmatch(low) or low.startswith(_NOT_PROMPTS)
    if is_bundled and not _NAMES.search(system):
        is_generic = is_generic or _COMMON.issuperset(re.findall(r"[a-z]+(?:'[a-z]+)?", low))
    return PERSONA if is_generic else system.strip()
