"""Where the public implementation does something that is plainly a defect, and which side we take.

Every switch has ours as the default and the public one's as the alternative; `reference()` switches
all of them over, which is what the golden vectors were recorded with. Source: sessions.md, the
passages marked FIX.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One model's choices.

    Args:
        listen_options_act_on_listen: the listen scale and listen top-k act on `<|listen|>`; else on
            `<|im_end|>`. No effect at their neutral defaults.
        keeps_speech_before_listen: a `<|listen|>` that follows speech within a unit ends a speaking
            unit; else the unit's speech and text are dropped.
        forced_listen_ends_speech: forced listening also forgets the speech decoder's turn; else the
            next turn continues a stale one.
        waits_for_whole_units: a unit with too little sound feeds nothing and keeps the sound; else
            its opening token and pictures are fed already.
        counts_window_exactly: the turn-based window counts what is in the context and drops the
            rounds that it says it drops; else it counts as the public one does.
        parses_typed_tags: tags like `<image>` in a person's text become the tokens of that name, as
            the public one does at its defaults; else they are words. Media are found by their place
            either way. Off is safer where texts come from strangers.
    """

    listen_options_act_on_listen: bool = True
    keeps_speech_before_listen: bool = True
    forced_listen_ends_speech: bool = True
    waits_for_whole_units: bool = True
    counts_window_exactly: bool = True
    parses_typed_tags: bool = True

    @classmethod
    def reference(cls) -> Behaviour:
        """As the public implementation."""
        return cls(False, False, False, False, False, True)
