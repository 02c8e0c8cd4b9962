import pytest
from tools.commit_message import problems

BODY = "\n\nA late result must not reach the slot's next session."


def test_a_short_subject_with_a_body_is_fine():
    assert problems("engine: drop results of the previous session" + BODY) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("# only a comment\n", "empty"),
        ("x" * 73 + BODY, "73 characters, at most 72"),
        ("engine: drop late results." + BODY, "period"),
        ("engine: drop late results\nbecause" + BODY, "second line"),
        ("engine: drop late results\n\n# a comment is no body", "no body"),
    ],
)
def test_other_messages_are_refused_with_the_reason(message: str, problem: str):
    assert problem in " ".join(problems(message))


@pytest.mark.parametrize("subject", ["Merge branch 'x'", "fixup! engine: drop", 'Revert "engine"'])
def test_what_git_writes_itself_needs_no_body(subject: str):
    assert problems(subject) == []
