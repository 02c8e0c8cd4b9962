"""What docs print: programs, commands, and what they promise to say."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Sample:
    """A program of a page, and the block `text` that follows it, if one does."""

    page: str
    number: int
    language: str
    program: str
    promised: str | None

    @property
    def id(self) -> str:
        return f"{self.page}:{self.language}{self.number}"


def samples(page: str, *languages: str) -> list[Sample]:
    """The programs of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    found: list[Sample] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] not in languages:
            continue
        is_promise = after is not None and after[1] == "text"
        between = text[block.end() : after.start()] if after is not None else ""
        promised = after[2] if after is not None and is_promise and not between.strip() else None
        found.append(Sample(page, len(found), block[1], block[2], promised))
    return found


def commands(page: str) -> list[tuple[str, str]]:
    """`$ parley …` in blocks without a language: the words after `parley`, and what follows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        if block[1]:
            continue
        for part in re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if command.startswith("parley "):
                found.append((command.partition("#")[0].removeprefix("parley ").strip(), output))
    return found


def matches(promised: str, said: str) -> bool:
    """True if something was said as promised: figures and ids may differ, nothing else."""
    pattern = re.escape(" ".join(promised.split()))
    pattern = re.sub(r"\b((?:hdx|adx|omni|rt|chat|q)_)[0-9a-f_]+", r"\1\\w+", pattern)
    pattern = re.sub(r"(?<![\w\\+])\d+(?:\\\.\d+)?", r"\\d+(?:\\.\\d+)?", pattern)
    return re.fullmatch(pattern, " ".join(said.split())) is not None
