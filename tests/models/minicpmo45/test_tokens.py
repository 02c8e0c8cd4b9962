"""Layout of conversations: template, placeholders, truncation, system prompts."""

import itertools
import json
import random

import pytest
from tests.contracts.conversations import picture, voice
from tests.golden.tiny import TOKENIZER
from tests.support.small_minicpmo import IDS, ByteTokenizer

from parley.engine.segments import Audio, Image, Mark, Marker, Text
from parley.errors import SetupError
from parley.models.minicpmo45.audio_encoder.mel import token_count
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.prompt.inputs import Media, chat_messages
from parley.models.minicpmo45.prompt.layout import (
    PromptMessage,
    PromptPicture,
    PromptSound,
    answer_prompt,
    expand,
    render,
)
from parley.models.minicpmo45.tokenizer import CheckpointTokenizer

needs_tokenizer = pytest.mark.skipif(
    not (TOKENIZER / "vocab.json").is_file(), reason="the model's tokenizer files are absent"
)

WORDS = ByteTokenizer()

CONVERSATIONS = [
    [("user", "hello")],
    [("system", "Be brief."), ("user", "hello")],
    [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nHello."), ("user", "b")],
    [("user", "a"), ("assistant", "plain"), ("user", "b"), ("assistant", "last")],
    [("user", "a"), ("assistant", "<think>why</think>because")],
    [("user", "a"), ("assistant", "<think>x</think>y"), ("assistant", "\n\nz")],
    [("user", "a"), ("system", "later"), ("user", "b")],
    [("assistant", "first"), ("assistant", "second")],
    [("user", "no </think> of mine"), ("assistant", "")],
]


@pytest.fixture(scope="module")
def published():
    """transformers' tokenizer, which takes half a second to read its files."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer.from_pretrained(TOKENIZER)


@pytest.fixture(scope="module")
def words():
    return CheckpointTokenizer(TOKENIZER)


@needs_tokenizer
@pytest.mark.parametrize("turns", CONVERSATIONS)
@pytest.mark.parametrize(("thinks", "speaks"), list(itertools.product((False, True), repeat=2)))
def test_our_template_is_the_tokenizers_own(published, turns, thinks, speaks):
    theirs = published.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinks,
        use_tts_template=speaks,
    )

    ours = render([PromptMessage(role, (content,)) for role, content in turns])
    prompt = answer_prompt(enable_thinking=thinks, use_tts_template=speaks)

    assert "".join(map(str, ours)) + prompt.removeprefix("<|im_end|>\n") == theirs


@needs_tokenizer
def test_the_tokenizer_is_the_published_one(words):
    assert words.size == 151748
    assert (words.ids.unk, words.ids.tts_bos, words.ids.tts_eos) == (128244, 151703, 151704)
    assert len(words.bad_ids) == 6965
    # model.md 3.3, golden ids
    prompt = answer_prompt(enable_thinking=False, use_tts_template=True)
    assert words.encode(prompt) == [
        151645,
        198,
        151644,
        77091,
        198,
        151667,
        271,
        151668,
        271,
        151703,
    ]
    assert words.encode("</s>") == [522, 82, 29]
    assert words.decode([9707, words.ids.turn_eos], skip_special=True) == "Hello"


@needs_tokenizer
def test_texts_are_cut_as_transformers_cuts_them(published, words):
    assert words.special_ids == {
        number for number, token in published.added_tokens_decoder.items() if token.special
    }
    chance = random.Random(1)
    odd = [
        "hello",
        "你好",
        "\u3000",
        " ",
        "  ",
        "\n",
        "\r\n",
        "é",
        "e\u0301",
        "1234",
        "!?",
        "I'm",
        "🙂",
    ]
    odd += ["don’t", "\u200b", "\x00", "\ufffd", "<", "|>", "</s>"]
    odd += [str(token) for token in published.added_tokens_decoder.values()]
    for _ in range(300):
        text = "".join(chance.choices(odd, k=chance.randrange(1, 12)))
        for literal in (False, True):
            theirs = published(text, add_special_tokens=False, split_special_tokens=literal)
            ids = words.encode(text, literal=literal)
            assert ids == theirs["input_ids"], text
            for skips in (False, True):
                found = words.decode(ids, skip_special=skips)
                assert found == published.decode(ids, skip_special_tokens=skips)


@needs_tokenizer
def test_files_that_number_a_token_differently_are_refused(tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(TOKENIZER / name)
    settings = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]["151669"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    with pytest.raises(SetupError, match="ids of </image>"):
        CheckpointTokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "vocab.json").write_text("no json")

    with pytest.raises(SetupError, match="cannot be read"):
        CheckpointTokenizer(tmp_path)


@needs_tokenizer
def test_tags_may_be_read_as_words(words):
    literal = words.encode("<image>x<|im_end|>", literal=True)

    assert not set(literal) & {words.ids.image, words.ids.im_end}
    assert words.decode(literal) == "<image>x<|im_end|>"


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [(0.05, 0), (0.1, 1), (0.5, 5), (1.0, 10), (1.035, 10), (2.34, 23), (30, 300), (60.3, 603)],
)
def test_a_clip_takes_ten_tokens_a_second(seconds, tokens):
    assert token_count(round(seconds * 16000)) == tokens


def test_a_listen_tag_in_a_text_disappears():
    prompt = expand(["hi <|listen|>!"], WORDS, SliceRules())

    assert IDS.listen not in prompt.ids
    assert WORDS.encode("hi !") == list(prompt.ids)


def test_a_sliced_picture_has_its_number_its_overview_and_rows_of_tiles():
    prompt = expand([PromptPicture(0, 700, 700)], WORDS, SliceRules(), queries=2)

    row = [IDS.slice, IDS.unk, IDS.unk, IDS.slice_end] * 2
    overview = [IDS.image, IDS.unk, IDS.unk, IDS.image_end]
    number = [IDS.image_id, ord("0"), IDS.image_id_end]
    assert list(prompt.ids) == [*number, *overview, *row, ord("\n"), *row]
    assert [place.start for place in prompt.places] == [4, 8, 12, 17, 21]


def test_clips_of_one_message_are_one_signal_and_of_two_messages_are_two():
    start, end = Marker(Mark.TURN_START, "user"), Marker(Mark.TURN_END, "user")
    media = Media()

    messages = chat_messages(
        [
            start,
            Audio(voice(1.0)),
            Text("and"),
            Audio(voice(0.5)),
            end,
            start,
            Audio(voice(2.0)),
            end,
        ],
        media,
        max_slices=None,
        with_id=True,
        pool_step=5,
    )

    assert [len(signal) for signal in media.signals()] == [24000, 32000]
    sounds = [
        part for message in messages for part in message.parts if isinstance(part, PromptSound)
    ]
    assert [sound.tokens for sound in sounds] == [10, 5, 20]


def test_a_pictures_own_requests_win():
    media = Media()
    image = Image(picture(), max_slices=3, with_id=False)

    found = media.add_picture(image, max_slices=None, with_id=True)

    assert (found.max_slices, found.with_id) == (3, False)
