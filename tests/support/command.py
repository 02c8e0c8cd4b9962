"""Runs the command line in this process."""

import pytest

from parley import cli


def run(*words: str) -> int:
    """The exit code of `parley WORDS`."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    code = caught.value.code
    return code if isinstance(code, int) else 0
