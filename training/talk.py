"""Talking with the model on plain modules: greedy, one conversation, for measuring.

The server runs the same weights through `parley.models.minicpmo45`; this is the short way to
figures while training, and the reference that the engine's path is compared with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from parley.models.pocket import quantized
from parley.models.pocket.inner import CAUTION
from parley.models.pocket.vocoder import CodeVocoder, Spoken
from training import sight, sound
from training import tokenizer as pocket_tokenizer
from training.layout import SOUND, Sample, Writer
from training.nets import Pocket
from training.pictures import Pixels
from training.shape import Shape
from training.sound import Samples
from training.timeline import LEFT_PAD

MAX_TOKENS = 90


@dataclass
class Reply:
    """What a turn came to: what the model heard and saw (inner span), and what it said."""

    heard: str
    seen: str
    answer: str
    answer_ids: list[int]


class Talker:
    """A model with its tokenizer (and vocoder, where there is one)."""

    def __init__(
        self, pocket: Pocket, tokenizer: Tokenizer, vocoder: CodeVocoder | None, silence: int = 0
    ) -> None:
        self.pocket = pocket.eval().float().requires_grad_(False)
        self.tokenizer = tokenizer
        self.vocoder = vocoder
        self.silence = silence
        self.ids = tokenizer.get_vocab(with_added_tokens=True)

    @classmethod
    def load(cls, folder: Path) -> Talker:
        """From an exported checkpoint folder."""
        tensors = quantized.read_all(folder)
        settings = json.loads((folder / "pocket.json").read_text())
        tokenizer = pocket_tokenizer.load(folder)
        pocket = Pocket(Shape(**settings["shape"]))
        state = {}
        for name in pocket.state_dict():
            official = name.removeprefix("ears.").removeprefix("eyes.")
            state[name] = tensors[official]
        pocket.load_state_dict(state)
        vocoder = CodeVocoder(settings["shape"]["codes"])
        vocoder.load_state_dict(
            {n.removeprefix("vocoder."): t for n, t in tensors.items() if n.startswith("vocoder.")}
        )
        return cls(pocket, tokenizer, vocoder.eval(), settings["silence_code"])

    @torch.inference_mode()
    def hear(self, samples: Samples, *, is_chunked: bool = False, offset: int = 0) -> Tensor:
        """Embeddings (rows, hidden) of a whole sound."""
        mel, frames = sound.log_mel([samples], is_floored=[True])
        mel = mel[:, : int(frames[0])]
        heard, real = self.pocket.ears.hear(
            mel, frames, is_chunked=torch.tensor([is_chunked]), offsets=torch.tensor([offset])
        )
        return self.pocket.ears.embed(heard)[0, : int(real[0]) // 5]

    @torch.inference_mode()
    def hear_live(self, samples: Samples) -> Tensor:
        """Embeddings of a live stream of whole seconds: ten rows per unit."""
        padded = np.concatenate([np.zeros(LEFT_PAD, np.float32), samples])
        units = len(samples) // sound.RATE_HZ
        return self.hear(padded[: units * sound.RATE_HZ], is_chunked=True)

    @torch.inference_mode()
    def look(self, pixels: Pixels) -> Tensor:
        """Embeddings (queries, hidden) of a picture."""
        return self.pocket.eyes(sight.as_tensor(pixels)[None])[0]

    @torch.inference_mode()
    def embed(self, sample: Sample, sounds: list[Tensor], pictures: list[Tensor]) -> Tensor:
        """Rows (1, T, hidden) of a sequence."""
        rows = self.pocket.llm.embed(torch.tensor(sample.ids))
        kinds = torch.tensor(sample.kinds)
        heard = [sounds[which][first : first + count] for which, first, count in sample.sounds]
        if heard:
            rows[kinds == SOUND] = torch.cat(heard)
        if sample.pictures:
            rows[kinds == 2] = torch.cat([pictures[which] for which in sample.pictures])
        return rows[None]

    @torch.inference_mode()
    def reply(self, rows: Tensor) -> Reply:
        """Greedy answer after the rows of a prompt."""
        ids = self.decode(
            rows, self.pocket.llm.model.new_caches(), self.ends("<|tts_eos|>", "<|im_end|>")
        )
        return self.split(ids)

    def ends(self, *names: str) -> set[int]:
        return {self.ids[name] for name in names}

    @torch.inference_mode()
    def decode(
        self, rows: Tensor, caches: list[list], ends: set[int], limit: int = MAX_TOKENS
    ) -> list[int]:
        """Feed rows, then decode until an end token (which is not fed)."""
        llm = self.pocket.llm
        ids: list[int] = []
        hidden = llm.model(rows, caches=caches)
        while len(ids) < limit:
            token = int(llm.logits(hidden[0, -1]).argmax())
            if token in ends:
                return ids
            ids.append(token)
            hidden = llm.model(llm.embed(torch.tensor([[token]])), caches=caches)
        return ids

    def split(self, ids: list[int]) -> Reply:
        """Inner span and answer."""
        close = self.ids["</perception>"]
        at = ids.index(close) if close in ids else -1
        answer_ids = ids[at + 1 :]
        inner = ids[: at + 1] if at >= 0 else []
        text = self.tokenizer.decode(inner, skip_special_tokens=False)
        text = text.replace("<perception>", "").replace("</perception>", "")
        heard, _, seen = text.partition("<source_image>")
        answer = self.tokenizer.decode(answer_ids, skip_special_tokens=True)
        return Reply(heard.strip(), seen.strip(), answer.strip(), answer_ids)

    @torch.inference_mode()
    def say(self, text_ids: list[int], *, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """Speech codes of a whole answer."""
        mouth = self.pocket.tts
        rows = [*text_ids, self.ids["</perception>"], self.ids["<focus>"]]
        caches = mouth.model.new_caches()
        hidden = mouth.model(mouth.emb_text(torch.tensor([rows])), caches=caches)
        generator = torch.Generator().manual_seed(seed)
        codes: list[int] = []
        while len(codes) < 30 + 16 * len(text_ids):
            logits = mouth.head_code[0](hidden[0, -1])
            if temperature:
                values, places = (logits / temperature).topk(25)
                code = int(places[torch.multinomial(values.softmax(-1), 1, generator=generator)])
            else:
                code = int(logits.argmax())
            if code == mouth.codes:
                break
            codes.append(code)
            hidden = mouth.model(mouth.emb_code[0](torch.tensor([[code]])), caches=caches)
        return codes

    def sound_of(self, codes: list[int]) -> Samples:
        """Codes as 24 kHz samples."""
        assert self.vocoder is not None
        return Spoken(self.vocoder, self.silence).push(codes, is_last=True)


@dataclass
class UnitOutcome:
    """What one unit came to: listen or speak, text, whether the turn ended."""

    is_listen: bool
    text: str
    ends: bool
    heard: str = ""


class LiveTalk:
    """A duplex session: prompt, then unit after unit."""

    def __init__(self, talker: Talker, system: str, *, forced: int = 0) -> None:
        self.talker = talker
        self.caches = talker.pocket.llm.model.new_caches()
        self.forced = forced
        self.count = 0
        self.is_in_turn = False
        writer = Writer(talker.tokenizer)
        writer.text(f"<|im_start|>system\n{system}\n<|audio_start|><|audio_end|><|im_end|>")
        self._feed(talker.embed(writer.done(), [], []))

    @torch.inference_mode()
    def _feed(self, rows: Tensor) -> Tensor:
        return self.talker.pocket.llm.model(rows, caches=self.caches)

    @torch.inference_mode()
    def unit(self, rows: Tensor, picture: Tensor | None = None) -> UnitOutcome:
        """One second: its ten rows (and a frame's), then the decision."""
        talker, ids = self.talker, self.talker.ids
        llm = talker.pocket.llm
        writer = Writer(talker.tokenizer).text("<unit>")
        if picture is not None:
            writer.picture(0)
        writer.sound(0, 0, len(rows))
        embedded = talker.embed(writer.done(), [rows], [picture] if picture is not None else [])
        hidden = self._feed(embedded)
        is_forced = self.count < self.forced
        self.count += 1
        said: list[int] = []
        ended = False
        terminator = ids["<|chunk_eos|>"]
        stops = {ids["<|listen|>"], terminator, ids["<|chunk_tts_eos|>"]}
        inner = False
        counted = 0
        while counted < 19 and len(said) < MAX_TOKENS:
            logits = llm.logits(hidden[0, -1])
            if not said and not self.is_in_turn:
                logits[ids["<|listen|>"]] += CAUTION
            token = ids["<|listen|>"] if is_forced else int(logits.argmax())
            if token == ids["<|listen|>"] and self.is_in_turn:
                token = ids["<|tts_bos|>"]
            if token in stops:
                terminator = token
                break
            self.is_in_turn = token != ids["<|turn_eos|>"]
            ended = token == ids["<|turn_eos|>"]
            said.append(token)
            inner = (inner or token == ids["<perception>"]) and token != ids["</perception>"]
            counted += not inner
            hidden = self._feed(llm.embed(torch.tensor([[token]])))
        self._feed(llm.embed(torch.tensor([[terminator, ids["</unit>"]]])))
        reply = talker.split(said)
        is_listen = terminator == ids["<|listen|>"] and not (reply.answer and ended)
        return UnitOutcome(is_listen, "" if is_listen else reply.answer, ended, reply.heard)
