"""Turn-taking: has the user finished, and do they interrupt. Pure: fed with sound and times."""

from parley.turns.end_of_turn import Combined, EndOfTurn, WordsEnd, silence_ms
from parley.turns.judges import NO_JUDGES, JudgesTurns, TurnJudges

__all__ = [
    "NO_JUDGES",
    "Combined",
    "EndOfTurn",
    "JudgesTurns",
    "TurnJudges",
    "WordsEnd",
    "silence_ms",
]
