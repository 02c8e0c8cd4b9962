"""Turn-taking: decides whether the user has finished, and whether they interrupt. Pure functions of
audio and times."""

from parley.turns.end_of_turn import EndOfTurn as EndOfTurn
from parley.turns.end_of_turn import log_odds as log_odds
from parley.turns.end_of_turn import silence_ms as silence_ms
from parley.turns.judges import NO_JUDGES as NO_JUDGES
from parley.turns.judges import JudgesTurns as JudgesTurns
from parley.turns.judges import TurnJudges as TurnJudges
