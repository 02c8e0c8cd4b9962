"""Words and codes that published clients compare literally, read out of the clients: ours are the
same. A version that compares others makes this fail."""

import re
from pathlib import Path

import pytest
from tests.clients.programs import ENVIRONMENTS, IS_INSTALLED

from parley.dialects.openai_realtime.items import DuplicateItem, NothingToRetrieve
from parley.session.listener import NothingToCommit
from parley.session.response import NothingToCancel, ResponseInProgress

OURS = {
    error.code for error in (ResponseInProgress, DuplicateItem, NothingToCancel, NothingToCommit)
} | {NothingToRetrieve.code}
FATAL = {
    *("insufficient_quota", "credit_balance_exhausted", "invalid_api_key", "account_deactivated"),
    *("billing_hard_limit_reached", "forbidden"),
}
"""LiveKit ends its agent for these: said of keys only, never of what happens in a session."""

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="SDKs of others: make clients")


def source(path: str) -> str:
    (found,) = (ENVIRONMENTS / "current/lib").glob(f"python3.*/site-packages/{path}")
    return Path(found).read_text(encoding="utf-8")


def test_livekit_compares_codes_and_words_that_we_send():
    text = source("livekit/agents/llm/_realtime/openai.py")

    codes = set(re.findall(r'error\.code == "(\w+)"', text))
    beginnings = re.findall(r'error\.message\.startswith\("([^"]+)"\)', text)
    fatal = set(re.findall(r'"(\w+)"', text.split("_FATAL_ERROR_CODES", 1)[1].split(")", 1)[0]))

    assert codes
    assert codes <= OURS
    assert beginnings
    assert all(str(NothingToCancel()).startswith(words) for words in beginnings)
    assert fatal
    assert fatal <= FATAL
    assert not fatal & OURS


def test_pipecat_compares_codes_that_we_send():
    text = source("pipecat/services/openai/realtime/llm.py")

    (harmless,) = re.findall(r"error\.code in \(([^)]*)\)", text)
    codes = {*re.findall(r'"(\w+)"', harmless), *re.findall(r'error\.code == "(\w+)"', text)}

    assert len(codes) > 2
    assert codes <= OURS
