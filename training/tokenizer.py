"""The pocket tokenizer: byte-level BPE over the domain, every special token of the large model by
name, in the large model's order. Writes the same files as the official checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from training import dialogue, pictures, words

PLAIN_SPECIAL = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()
"""Added tokens that survive `skip_special_tokens`."""
ADDED = [
    *(
        "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> "
        "<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> "
        "<|vision_pad|> <|image_pad|> <|video_pad|>"
    ).split(),
    *PLAIN_SPECIAL,
    *(
        "<image> </image> <ref> </ref> <box> </box> <quad> </quad> <point> </point> <slice> "
        "</slice> <image_id> </image_id> <unit> </unit> <answer> </answer> <focus> </focus> "
        "<line> </line> <perception> </perception> <source_image> <image_save_to> "
        "</image_save_to> <|audio_start|> <|audio|> <|audio_end|> <|spk_bos|> <|spk|> <|spk_eos|> "
        "<|tts_bos|> <|tts_eos|> <|listen|> <|speak|> <|interrupt|> <|vad_start|> <|vad_end|> "
        "<|emotion_start|> <|emotion_end|> <|speed_start|> <|speed_end|> <|pitch_start|> "
        "<|pitch_end|> <|turn_bos|> <|turn_eos|> <|chunk_eos|> <|chunk_bos|> <|chunk_tts_bos|> "
        "<|chunk_tts_eos|> <|tts_pad|>"
    ).split(),
    *(f"<|timbre_{i}|>" for i in range(7, 32)),
]
# Source: the published tokenizer's pre-tokenizer pattern (Qwen2).
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus(seed: int, dialogues: int) -> Iterator[str]:
    """Text with the frequencies that matter: every word of the domain in every written form."""
    random = Random(seed)
    for system in dialogue.SYSTEMS * 40:
        yield f"system\n{system}"
    yield from ["<think>\n\n</think>\n\n", "user\n", "assistant\n", "system\n"] * 200
    for _ in range(dialogues):
        made = dialogue.make_dialogue(random)
        yield made.system
        for turn in made.turns:
            yield " " + turn.heard
            yield turn.answer
            yield dialogue.typed(random, turn)
        scene = pictures.make_scene(random)
        turn = dialogue.scene_turn(random, scene)
        yield from (" " + turn.heard, turn.answer, " " + scene.describe())
    for table in (words.NAMES, words.CAPITALS, words.CAPITALS.values(), words.NOUNS, words.VERBS):
        for word in table:
            yield from [f" {word}", f" {dialogue.sentence(word)}", dialogue.sentence(word)] * 3


def train(path: Path, *, seed: int = 1, dialogues: int = 30_000, merges: int = 1350) -> Tokenizer:
    """Train and write `path`/ vocab.json, merges.txt, tokenizer.json, tokenizer_config.json …"""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus(seed, dialogues),
        BpeTrainer(
            vocab_size=256 + merges,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    base = json.loads(bpe.to_str())["model"]
    vocab: dict[str, int] = dict(base["vocab"])
    for extra in ("<unk>", "</s>"):
        vocab[extra] = len(vocab)
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in base["merges"]]
    full = Tokenizer(models.BPE(vocab=vocab, merges=[(a, b) for a, b in pairs]))
    full.normalizer, full.pre_tokenizer = bpe.normalizer, bpe.pre_tokenizer
    full.decoder = bpe.decoder
    tokens = [("<unk>", True), *((name, name not in PLAIN_SPECIAL) for name in ADDED)]
    for name, is_special in tokens:
        token = AddedToken(name, normalized=False, special=is_special)
        (full.add_special_tokens if is_special else full.add_tokens)([token])
    _write(path, full, vocab, pairs, tokens)
    return full


def load(path: Path) -> Tokenizer:
    """Read what `train` wrote."""
    return Tokenizer.from_file(str(path / "tokenizer.json"))


CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' and loop.last %}"
    "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"
    "{{- message.content + '<|im_end|>\\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- if use_tts_template is defined and use_tts_template %}{{- '<|tts_bos|>' }}{%- endif %}"
    "{%- endif %}"
)
"""The turns of the large model's template; tools and reasoning are outside this model's domain."""


def _write(
    path: Path,
    tokenizer: Tokenizer,
    vocab: dict[str, int],
    pairs: list[list[str]],
    tokens: list[tuple[str, bool]],
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    ids = {name: tokenizer.token_to_id(name) for name, _ in tokens}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    decoder = {
        str(ids[name]): {"content": name, **flags, "special": special} for name, special in tokens
    }
    # Never said: halves of characters, brackets, line breaks.
    bad = sorted(
        i
        for token, i in vocab.items()
        if token in ("(", ")", "[", "]", "{", "}")
        or any(_BYTES.get(c, 0) >= 0x80 or _BYTES.get(c) == 10 for c in token)
    )
    specials = [name for name, special in tokens if special]
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": specials,
        "bos_token": "<|im_start|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 8192,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": "<unk>",
        "bad_token_ids": bad,
    }
    files = {
        "vocab.json": vocab,
        "added_tokens.json": {name: ids[name] for name, _ in tokens if name != "<unk>"},
        "tokenizer_config.json": config,
        "special_tokens_map.json": {
            "additional_special_tokens": [{"content": name, **flags} for name in specials],
            "bos_token": {"content": "<|im_start|>", **flags},
            "eos_token": {"content": "<|im_end|>", **flags},
            "pad_token": {"content": "<|endoftext|>", **flags},
            "unk_token": {"content": "<unk>", **flags},
        },
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content, ensure_ascii=False, indent=1))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs)]
    (path / "merges.txt").write_text("\n".join(lines) + "\n")
    tokenizer.save(str(path / "tokenizer.json"))


def _byte_names() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: which byte a character is."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in plain}
    others = (value for value in range(256) if value not in plain)
    table.update({chr(256 + index): value for index, value in enumerate(others)})
    return table


_BYTES = _byte_names()
