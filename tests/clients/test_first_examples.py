"""The first examples of the SDKs' own READMEs run, and docs/protocols/clients.md says so."""

import asyncio

import pytest
from tests.clients.kit import CLIENTS, POCKET, TABLE, Client, Outcomes, run_all, table_of

# The first of them waits for all programs, which mostly import: a minute on a quiet machine.
pytestmark = pytest.mark.timeout(900)
MADE_BY = "python -m tests.clients.kit"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return asyncio.run(run_all())


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.package} {client.note}")
def test_the_examples_of_a_client_run_unchanged(client: Client, outcomes: Outcomes):
    if client not in outcomes:
        pytest.skip(f"{client.package} is not installed: make clients")

    lines = outcomes[client]

    assert len(lines) > 1
    wrong = {line["example"]: line["problem"] for line in lines if line["problem"]}
    expected = {line["example"]: line["refused"] for line in lines if line["refused"]}
    assert wrong.keys() == expected.keys(), wrong
    assert all(expected[name] in sentence for name, sentence in wrong.items()), wrong


def test_what_pocket_refuses_is_one_sentence_that_says_what_to_set(outcomes: Outcomes):
    wrong = {line["example"]: line["problem"] for line in outcomes[POCKET] if not line["refused"]}
    refused = {name: problem for name, problem in wrong.items() if problem}

    assert refused.keys() == {"chat tools", "responses tools"}
    assert all("--model cascade --llm ADDRESS" in problem for problem in refused.values())


def test_the_table_says_what_the_examples_came_to(outcomes: Outcomes):
    rows = table_of(outcomes).splitlines()

    assert set(rows) <= set(TABLE.read_text(encoding="utf-8").splitlines()), MADE_BY


def test_the_table_lists_every_client():
    table = TABLE.read_text(encoding="utf-8")

    assert [c for c in (*CLIENTS, POCKET) if f"| {c.package}" not in table] == []
