"""The contract of a language model that writes the answers.

A `Draft` is an unfinished answer, an immutable value. Together with the history it contains
everything that is needed to continue, so a row that returns to an earlier point writes the same
text again. `Writer.step` does a bounded piece of work and returns the next draft.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from parley.models.cascade.messages import History
from parley.models.cascade.sampling import Rule
from parley.protocol.values import AnswerFormat, TokenLogprob


@dataclass(frozen=True, slots=True)
class AnswerProblem:
    """Reason for a missing or incomplete answer.

    Args:
        spoken: sentence that the user hears.
        message: what happened and what to do, for the client; may have fields for `filled`.
    """

    spoken: str
    message: str

    def filled(self, **facts: object) -> AnswerProblem:
        """The problem with the facts of this case."""
        return AnswerProblem(self.spoken, self.message.format(**facts))


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """An answer while it is being written.

    Args:
        text: text that may be shown and spoken; never contains a control token.
        ids: tokens chosen so far (empty for writers that do not report them).
        is_over: nothing follows.
        is_limit: it ended because `limit` tokens were chosen.
        count: number of tokens chosen.
        problem: reason why there is no (more) text; None if there is no problem.
        calls: calls of functions, as text (`views/tools.py`); they follow the text and are not
            spoken.
        has_format: the text is JSON, which is left as written.
        forced: tokens that its format requires next.
        logprobs: of all tokens so far, if `Rule.top_logprobs` requests them.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    is_over: bool = False
    is_limit: bool = False
    count: int = 0
    problem: AnswerProblem | None = None
    calls: str = ""
    has_format: bool = False
    forced: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_apology(self) -> bool:
        """True if the text is only the problem's sentence, which is not added to the history."""
        return self.problem is not None and self.text in ("", self.problem.spoken)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerRequest:
    """The history to answer, and options for the answer.

    Args:
        limit: maximum number of tokens of the answer.
        seed: of the conversation's random numbers.
        is_seed_chosen: see `StartSession`.
    """

    history: History
    rule: Rule
    limit: int
    seed: int = 0
    is_seed_chosen: bool = False


LINE_TOKENS: Final = 4
"""Tokens of a chat template around each line of a conversation."""


class Writer(ABC):
    """A language model of the cascade. All calls come from the engine thread.

    The default methods suit a writer that does not choose tokens itself, or that reads everything
    again: a choice is the draft, nothing is prepared, and costs are unknown.

    Attributes:
        takes_notes: the model was trained to answer from notes.
        answers_later: a server generates, so a `step` may find nothing new (`waits_s`).
        sees: the model accepts pictures.
        calls_tools: the model calls functions, and can be forced to.
        keeps_formats: its text follows `Rule.answer_format`.
        takes_penalties: it applies presence and frequency penalties.
        reports_logprobs: it reports the probabilities of its tokens.
        limit_tokens: size of its context.
        limit_setting: the setting that raises it; "" if there is none.
    """

    takes_notes = False
    answers_later = False
    sees = False
    calls_tools = False
    keeps_formats = False
    takes_penalties = False
    reports_logprobs = False
    limit_tokens: int
    limit_setting = ""

    @abstractmethod
    def check_format(self, form: AnswerFormat) -> None:
        """Refuse a format to which the text cannot be constrained.

        Raises:
            InvalidRequest: names the unsupported part.
        """

    @abstractmethod
    def open(self, row: int) -> None:
        """Start a conversation."""

    def close(self, row: int) -> None:
        """End a conversation: free its resources and stop its work."""
        self.open(row)

    def count(self, history: History) -> int:
        """Number of tokens of a conversation."""
        lines = sum(LINE_TOKENS + self.count_text(line.text) for line in history.lines)
        return self.count_text(history.system) + lines

    @abstractmethod
    def count_text(self, text: str) -> int: ...

    def prepare(self, row: int, history: History, *, later: bool = False) -> bool:
        """Do a bounded piece of work towards reading `history`; returns True when none is left.
        `later`: only note it."""
        return True

    def cost(self, history: History, draft: Draft) -> int:
        """Cost of the next token, in hundredths of a second of one core.

        Estimated from counts only, never measured: the work of a unit depends on it, and must be
        the same when a conversation is repeated. 0 for writers without an estimate.
        """
        return 0

    def cost_of_reading(self, tokens: int) -> int:
        """Cost of reading a prompt of this length, in the unit of `cost`."""
        return 0

    @abstractmethod
    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        """True if the next `step` reads the prompt; false if it generates."""

    def waits_s(self, row: int, history: History) -> float:
        """Time in which no `step` of the answer to `history` is due: infinity until something
        arrives (`Job.waits_s`)."""
        return 0.0

    @abstractmethod
    def step(self, row: int, request: AnswerRequest, draft: Draft, draws: int) -> Draft:
        """Do a bounded piece of work; returns the current draft.

        Args:
            draws: number of tokens chosen so far in this conversation (`sampling.choose`).
        """

    def choice(self, before: Draft, after: Draft) -> object:
        """The choice of a step, as a value."""
        return after

    def again(self, row: int, request: AnswerRequest, draft: Draft, choice: object) -> Draft:
        """The draft after `choice`. The tokens that it must read are noted, and read before
        `prepare` or `step` do anything else."""
        return choice if isinstance(choice, Draft) else draft

    def cancel(self, row: int) -> None:  # noqa: B027
        """Discard the current draft. Nothing to do if no work runs between two steps."""

    @abstractmethod
    def point(self, row: int) -> object:
        """The tokens that a row has read, for `rewind`."""

    @abstractmethod
    def rewind(self, row: int, point: object) -> None:
        """Drop the tokens that were read since `point`."""


_STOPS = re.compile(r"<\|?|\n|\(\s*note\b|\|>", re.I)
_OPENS = re.compile(r"(?:<|\(\s*n?o?t?e?|\|)$", re.I)
_THOUGHT = re.compile(
    r"<(think(?:ing)?|thought|seed:think)>.*?(?:</\1>|$)|\[THINK\].*?(?:\[/THINK\]|$)"
    # Harmony: only the last channel, `final`, is for the user.
    r"|<\|channel\|>(?!final)\w*.*?(?:<\|end\|>|(?=<\|start\|>)|$)",
    re.I | re.S,
)
_FINAL = re.compile(
    r"(?:<\|start\|>\w*)?<\|channel\|>final(?:<\|message\|>|$)|<\|start\|>\w*", re.I
)
_WELL = r"\s*(?:(?:okay|ok|alright|hmm|well|so|first)\W+)*"
_MUSES = re.compile(
    _WELL + r"(?:the user(?:'s (?:question|message|asking|request)| (?:is|has|wants|asks|asked"
    r"|said|says|just|sent|seems|greeted|wrote|simply))\b|(?:i|we) (?:need|have) to (?:respond"
    r"|answer|figure|reply)\b|let me (?:think|figure)\b)|\s*analysis(?=[A-Z])",
    re.I,
)
_MAY_MUSE = re.compile(
    _WELL + r"(?:the(?: u\w*(?:'?| )\w*)?|(?:i|we)(?: (?:need|have)(?: to)?)?|let(?: me)?|a\w*"
    r"|o\w?|h\w*|we\w*|so?|f\w*)?\s*$",
    re.I,
)
_MUSED = re.compile(r"</think(?:ing)?>|\[/THINK\]|assistantfinal")
_CODE = re.compile(r"(```.*?(?:```|$)|`[^`\n]*`?)", re.S)
_TAG = re.compile(r"</?[a-z_]+>", re.I)
_END = re.compile(r"<\||\|>")
_CODE_END = re.compile(r"<\|\w+\|>")
_OPEN_TAG = re.compile(r"<(?:\|\w*\|?|/?[a-z_:]*)$|\|$|\[(?:/?T(?:H(?:I(?:N?)?)?)?)?$", re.I)


def ends_thoughts(text: str) -> bool:
    """True if a text contains the end of thoughts whose start is in the prompt's template."""
    return bool(_MUSED.search(_THOUGHT.sub(" ", text)))


def readable(text: str, *, is_last: bool, thinks: bool = False) -> tuple[str, bool]:
    """Visible part of another model's text, and whether the answer ends there.

    Lines and code are returned as written, without thoughts and tags; a control token ends the
    answer. The end of the text is held back while it may still become one of these. Thoughts that
    no tag opens are recognised by their first words; `thinks`: the model's last answer had such
    thoughts.
    """
    text = text.replace("\ufffd", "")
    unknown = None if is_last else _OPEN_TAG.search(text)
    text = text[: unknown.start()] if unknown else text
    # A space replaces removed text: its neighbours must not form a new tag.
    text = _FINAL.sub(" ", _THOUGHT.sub(" ", text))
    if thinks or _MUSES.match(text):
        *_, text = _MUSED.split(text) if is_last or _MUSED.search(text) else ("",)
    elif not is_last and _MAY_MUSE.match(text):
        return "", False
    shown_text = ""
    for place, part in enumerate(_CODE.split(text)):
        kept = part if place % 2 else _TAG.sub(" ", part)
        end = (_CODE_END if place % 2 else _END).search(kept)
        if end:
            return (shown_text + kept[: end.start()]).strip(), True
        shown_text += kept
    return shown_text.strip(), False


def shown(text: str, *, is_last: bool) -> tuple[str, bool]:
    """Visible part of the bundled model's text, and whether the answer ends there.

    The text is cut off at the start of the first control token, note or new line; its end is held
    back while it may still become one.
    """
    # Bytes of no letter are removed first: without them, their neighbours may form a control token.
    text = text.replace("\ufffd", "")
    found = _STOPS.search(text)
    if found:
        return text[: found.start()].rstrip(), True
    if not is_last:
        held = _OPENS.search(text)
        if held:
            text = text[: held.start()]
        return text.rstrip(" "), False
    return text.rstrip(), False
