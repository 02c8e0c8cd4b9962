"""Turn-taking: has the user finished, and do they interrupt. Pure: fed with sound and times."""

from parley.turns.end_of_turn import EndOfTurn, log_odds, silence_ms
from parley.turns.judges import NO_JUDGES, JudgesTurns, TurnJudges

__all__ = [
    "NO_JUDGES",
    "EndOfTurn",
    "JudgesTurns",
    "TurnJudges",
    "log_odds",
    "silence_ms",
]
