"""Text tokens: each rule's arithmetic, and rows that do not mind their company."""

import pytest
import torch
from tests.support.choosing import candidates, weighed
from tests.support.small_minicpmo import IDS, VOCABULARY, ByteTokenizer

from parley.engine.work import Generate
from parley.models.minicpmo45.llm import sampling
from parley.models.minicpmo45.llm.sampling import Ask, ChoiceRule, Chooser, reply_rule, unit_rule
from parley.models.minicpmo45.runtime.randomness import race, uniforms
from parley.protocol.values import DuplexConfig

WORDS = ByteTokenizer()
CHOOSER = Chooser(WORDS, VOCABULARY, torch.device("cpu"))


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def weigh(scores: torch.Tensor, rule: ChoiceRule, history=()) -> torch.Tensor:
    return weighed(CHOOSER, scores, [Ask(rule, history, 0, 0)])[0]


def test_a_mixed_batch_chooses_as_its_rows_do_alone():
    rules = [
        reply_rule(Generate(), IDS, speaks=True),
        reply_rule(Generate(do_sample=False), IDS, speaks=False),
        unit_rule(DuplexConfig(), IDS, listen_id=IDS.listen),
        unit_rule(DuplexConfig(decode_mode="greedy"), IDS, listen_id=IDS.listen),
        ChoiceRule(temperature=1.5, top_k=0, top_p=1.0),
        ChoiceRule(temperature=0.2, top_k=3, top_p=0.1, repetition_penalty=1.3),
    ]
    for trial in range(20):
        logits = noise(len(rules), trial)
        asks = [Ask(rule, range(trial, trial + 9), 77 + i, trial) for i, rule in enumerate(rules)]

        together = CHOOSER.choose(logits, asks)

        alone = [CHOOSER.choose(logits[i : i + 1], [ask])[0] for i, ask in enumerate(asks)]
        assert together == alone


@pytest.mark.parametrize(
    "extreme",
    [
        {"listen_top_k": 10**30},
        {"listen_prob_scale": 1e300},
        {"text_repetition_penalty": 1e300},
        {"temperature": 1e-300},
        {"top_k": 10**30},
        {"text_repetition_window_size": 10**30, "max_new_speak_tokens_per_chunk": 10**30},
    ],
    ids=lambda options: next(iter(options)),
)
def test_whatever_number_one_row_brings_the_others_choose_as_alone(extreme):
    usual = unit_rule(DuplexConfig(), IDS, listen_id=IDS.listen)
    strange = unit_rule(DuplexConfig(**extreme), IDS, listen_id=IDS.listen)
    logits = noise(2)
    asks = [Ask(rule, range(9), 7, 0) for rule in (usual, strange)]

    chosen = CHOOSER.choose(logits, asks)

    assert chosen[0] == CHOOSER.choose(logits[:1], asks[:1])[0]
    assert 0 <= chosen[1].token < VOCABULARY
    scores = weighed(CHOOSER, logits, asks)
    assert not scores.isnan().any()
    assert not candidates(scores, [usual, strange])[0].softmax(-1).isnan().any()


def test_the_same_place_in_a_row_draws_the_same_and_the_next_draws_another():
    rule = ChoiceRule(temperature=3.0, top_k=0, top_p=1.0)
    logits = noise(1)

    first = [CHOOSER.choose(logits, [Ask(rule, (), 5, n)])[0].token for n in range(20)]
    again = [CHOOSER.choose(logits, [Ask(rule, (), 5, n)])[0].token for n in range(20)]
    other = [CHOOSER.choose(logits, [Ask(rule, (), 6, n)])[0].token for n in range(20)]

    assert first == again
    assert len(set(first)) > 5
    assert first != other


def test_a_speaking_reply_cannot_choose_what_it_must_not_say():
    scores = weigh(noise(1), reply_rule(Generate(), IDS, speaks=True))

    forbidden = {*WORDS.bad_ids, *WORDS.forbidden_symbols, IDS.unk}
    assert {int(i) for i in torch.isinf(scores).nonzero()} == forbidden


def test_the_two_repetition_penalties_treat_negative_logits_differently():
    scores = torch.full((1, VOCABULARY), 1.0)
    scores[0, :4] = torch.tensor([2.0, -2.0, 2.0, -2.0])

    by_sign = weigh(scores, ChoiceRule(repetition_penalty=2.0), (0, 1))
    blind = weigh(scores, ChoiceRule(repetition_penalty=2.0, penalty_minds_sign=False), (0, 1))

    assert by_sign[:4].tolist() == [1.0, -4.0, 2.0, -2.0]
    assert blind[:4].tolist() == [1.0, -1.0, 2.0, -2.0]


def test_a_length_penalty_above_one_makes_ending_less_likely():
    scores = torch.zeros(1, VOCABULARY)
    scores[0, IDS.tts_eos], scores[0, IDS.im_end] = 3.0, -3.0
    rule = reply_rule(Generate(length_penalty=1.5, repetition_penalty=1.0), IDS, speaks=False)

    after = weigh(scores, rule)

    assert after[IDS.tts_eos] == 2.0
    assert after[IDS.im_end] == -4.5


def test_a_chunk_end_that_the_probe_misses_is_impossible_afterwards():
    scores = weigh(noise(1), unit_rule(DuplexConfig(), IDS, listen_id=IDS.listen))

    assert torch.isinf(scores[IDS.chunk_eos])
    assert torch.isinf(scores[IDS.tts_pad])


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [(0, 1.0, 5), (3, 1.0, 3), (2, 0.0, 2), (0, 0.5, 2), (0, 1e-9, 1), (3, 0.7, 2)],
)
def test_filters_keep_the_best(top_k, top_p, kept):
    scores = torch.full((1, 50), -torch.inf)
    scores[0, :5] = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log()

    values, _ = candidates(scores, [ChoiceRule(temperature=1.0, top_k=top_k, top_p=top_p)])

    assert int(torch.isfinite(values).sum()) == kept


def test_entries_equal_to_the_last_admitted_one_are_admitted_too():
    scores = torch.tensor([[3.0, 2.0, 2.0, 1.0]])

    values, _ = candidates(scores, [ChoiceRule(temperature=1.0, top_k=2, top_p=1.0)])

    assert int(torch.isfinite(values).sum()) == 3


def test_a_draw_does_not_mind_the_last_bits():
    """What a row draws in company must be what it draws alone, and sums come out differently."""
    generator = torch.Generator().manual_seed(3)
    flat = 0.1 * torch.randn(1, 6562, generator=generator).expand(4000, -1)
    draws = torch.from_numpy(uniforms(1, 0, 4000))

    first = race(flat, draws)
    other = race(flat + 1e-6 * torch.randn(flat.shape, generator=generator), draws)

    assert int((first != other).sum()) <= 1


def test_noise_belongs_to_an_id_wherever_it_stands():
    """Filters put candidates into another order, and leave some out."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(500, 40, generator=generator)
    order = torch.stack([torch.randperm(40, generator=generator) for _ in range(500)])
    draws = torch.from_numpy(uniforms(2, 0, 500))

    plain = race(logits, draws)
    shuffled = race(logits.gather(1, order), draws, order)

    assert order.gather(1, shuffled[:, None])[:, 0].tolist() == plain.tolist()


def test_draws_of_one_row_do_not_depend_on_each_other():
    """The noise of two draws is two pieces of one table: how often the same of eight entries wins
    twice in a row is what independent draws give."""
    draws = torch.from_numpy(uniforms(5, 0, 20_000))
    won = race(torch.zeros(20_000, 8), draws)

    assert float((won[1:] == won[:-1]).float().mean()) == pytest.approx(1 / 8, abs=0.01)
    assert torch.bincount(won, minlength=8).tolist() == pytest.approx([2500] * 8, abs=200)


def test_a_token_costs_one_copy_to_the_device(monkeypatch):
    """However many rows with however different rules: everything travels in one table."""
    sent = []

    def counted(table, device):
        sent.append(device)
        return table

    monkeypatch.setattr(sampling, "to_device", counted)
    logits = noise(4, seed=2)
    rules = [
        ChoiceRule(forbids="reply", repetition_penalty=1.2, length_penalty=1.1, enders=(5,)),
        ChoiceRule(forbids="unit", probe=7, listen_id=9, listen_top_k=2),
        ChoiceRule(is_greedy=True),
        ChoiceRule(top_k=0, top_p=0.5, listen_id=3, listen_scale=0.5),
    ]
    asks = [Ask(rule, (1, 2, 3), seed, 10) for seed, rule in enumerate(rules)]
    # What is made from numbers of the host anywhere else would be another copy.
    monkeypatch.setattr(torch, "tensor", None)

    together = CHOOSER.choose(logits, asks)

    assert len(sent) == 1
    alone = [CHOOSER.choose(logits[i : i + 1], [ask])[0] for i, ask in enumerate(asks)]
    assert together == alone
