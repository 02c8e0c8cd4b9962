"""The report card as a page."""

from __future__ import annotations

import datetime
import math
import os
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from training.cascade.voicecard import interval

if TYPE_CHECKING:
    from training.cascade.card import Book

Row = dict[str, Any]

TITLES = {
    "half": "Spoken, half-duplex", "duplex": "Spoken, duplex", "fresh": "Spoken, second list",
    "telephone": "By telephone", "reverb": "In a room", "noisy": "In noise", "quiet": "26 dB quieter",
    "fast": "1.3 times as fast", "slow": "1.3 times as slow", "blind": "Typed, second list",
    "honest": "Outside its domain", "minute10": "In minutes 8 to 10 of a call",
    "turn40": "In turns 40 to 47",
}  # fmt: skip
"""Headings of the wrong answers, by part."""


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def shares(name: str, rows: list[Row], wanted: int | None, note: str = "") -> str:
    """A line of the table for right answers; `wanted` None: no number was given."""
    aim = "–" if wanted is None else f"{wanted} %"
    right = sum(row["ok"] for row in rows)
    low, high = wilson(right, len(rows))
    if not rows:
        return f"| {name} | not measured | {aim} | 0 | | {note} |"
    share = 100 * right / len(rows)
    met = "" if wanted is None else "yes" if round(share, 1) >= wanted else "no"
    return (
        f"| {name} | {share:.1f} % [{100 * low:.0f}, {100 * high:.0f}] | {aim} | {len(rows)} | "
        f"{met} | {note} |"
    )


def line(
    name: str, value: str, wanted: str, count: object, met: bool | None, note: str = ""
) -> str:
    sign = {True: "yes", False: "no", None: ""}[met]
    return f"| {name} | {value} | {wanted} | {count} | {sign} | {note} |"


def people_line(rows: list[Row]) -> str:
    if not rows:
        return line("recordings of a person: words wrong", "not measured", "10 %", 0, None)
    pairs = [(row["wrong"], row["words"]) for row in rows]
    rate = sum(e for e, _ in pairs) / sum(n for _, n in pairs)
    low, high = interval(pairs)
    return line(
        "recordings of a person: words wrong",
        f"{100 * rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}]", "10 %", len(rows), rate <= 0.1,
        "telephone prompts of one speaker",
    )  # fmt: skip


def photographs_line(rows: list[Row]) -> str:
    name = "photographs: right; surely wrong"
    if not rows:
        return line(name, "not measured", "–", 0, None)
    right = sum(row["ok"] for row in rows)
    wrong = sum(not row["ok"] and not row["unsure"] for row in rows)
    low, high = wilson(right, len(rows))
    share = 100 * right / len(rows)
    return line(
        name, f"{share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]; {wrong}", "–", len(rows), None,
        "a thousand classes; several of these pictures show none of them",
    )  # fmt: skip


def noise_line(rows: list[Row]) -> str:
    begun = [kind for row in rows for kind in row["begun"]]
    by = {kind: begun.count(kind) for kind in sorted(set(begun))}
    return line(
        "spoke without being asked in 30 min of silence, coughs, clicks, music at -20 dB",
        str(len(begun)), "1", f"{5 * len(rows)} min", len(begun) <= 1,
        ", ".join(f"{kind} {count}" for kind, count in by.items()),
    )  # fmt: skip


def cost_lines(book: Book) -> list[str]:
    lines = []
    calm = book.of("latency")
    load = (
        f"load {calm[-1]['load'][0]:.1f} to {calm[-1]['load'][1]:.1f}" if calm else "busy machine"
    )
    rows = calm[-1:] or book.of("half") + book.of("turn40")
    firsts = [ms for row in rows for ms in np.atleast_1d(row["first_ms"]) if ms]
    if firsts:
        p50, p95 = np.percentile(firsts, [50, 95]) / 1000
        lines.append(line(
            "half-duplex: end of speech (after the VAD) to first sound, p50 / p95",
            f"{p50:.2f} / {p95:.2f} s", "0.9 / 1.5 s", len(firsts), bool(p50 <= 0.9 and p95 <= 1.5),
            load,
        ))  # fmt: skip
    rows = calm[-1:] or book.of("duplex") + book.of("calls")
    units = [ms for row in rows for ms in row["units_ms"]]
    if units:
        p95 = float(np.percentile(units, 95))
        late = sum(ms > 1000 for ms in units)
        lines.append(line(
            "duplex: unit p95", f"{p95:.0f} ms", "700 ms", len(units), p95 <= 700,
            f"{load}; worst {max(units):.0f} ms",
        ))  # fmt: skip
        lines.append(line(
            "duplex: late units", f"{late} of {len(units)}", "0 in 10 min", len(units), late == 0, load,
        ))  # fmt: skip
    costs = book.of("cost")
    starts = calm[-1]["ready_s"] if calm else [row["ready_s"] for row in costs]
    if starts:
        ready = float(np.median(starts))
        lines.append(line("start to ready", f"{ready:.1f} s", "6 s", len(starts), ready <= 6,
                          f"{load}; {min(starts):.1f} to {max(starts):.1f} s"))  # fmt: skip
    if costs:
        memory = max(row["memory_mb"] for row in costs)
        lines.append(line("memory of the worker", f"{memory / 1000:.2f} GB", "1.2 GB", len(costs),
                          memory <= 1200))  # fmt: skip
    return lines


def as_markdown(book: Book, busy: str) -> str:
    """The page, from all results of a run."""
    from training.cascade.card import CONTROL

    texts = [str(row.get("answer", "")) for row in book.rows if row["part"] != "people"]
    shown = sum(bool(CONTROL.search(text)) for text in texts)
    kept_out = book.of("newcomer")
    table = [
        shares("spoken questions, half-duplex, five synthetic voices", book.of("half"), 92),
        shares("spoken questions, duplex, the same", book.of("duplex"), 90),
        shares("spoken questions, half-duplex, a second list, two voices each", book.of("fresh"), 92,
               "written after the first list was looked at, before it was asked"),
        *(shares(f"spoken questions, half-duplex, {how}", book.of(part), None, "the first list, one voice each")
          for part, how in (("telephone", "telephone band"), ("reverb", "room of 0.5 s, three quarters echo"),
                            ("noisy", "pink noise at -10 dB"), ("quiet", "26 dB quieter"),
                            ("fast", "1.3 times as fast"), ("slow", "1.3 times as slow"))),
        shares("typed newcomer lines, second list", book.of("blind"), 85,
               "57 of 66 (86 %) at its first run, blind; some rules were added afterwards"),
        shares("typed newcomer lines, first list", book.of("typed"), 85,
               "100 of 121 (83 %) at its first run, blind; general rules were added afterwards"),
        shares("typed newcomer lines, the list of the training days", kept_out, 85,
               "categories that failed were given more weight in training"),
        shares("outside its domain: right or honest", book.of("honest"), 85),
        shares("told names recalled, untrained names", book.of("names"), 95),
        people_line(book.of("people")),
        shares("right in minutes 8 to 10 of a call", book.of("minute10"), 90, "by voice, duplex"),
        shares("right in turns 40 to 47", book.of("turn40"), 90, "by voice, half-duplex"),
        noise_line(book.of("noise")),
        photographs_line(book.of("photographs")),
        line("control or inner text shown", str(shown), "never", len(texts), shown == 0),
        line("its voice: words wrong by an independent recogniser; band",
             "3.6 [1.6, 6.0] and 4.4 % [2.5, 6.5]; 12 kHz", "8 %; 11 kHz", 25, True,
             "these weights, measured before by `training.cascade.voicecard`: docs/log/pocket.md"),
        *cost_lines(book),
    ]  # fmt: skip
    by_voice = []
    for voice in sorted({row["voice"] for row in book.of("half") + book.of("duplex")}):
        of = [[row["ok"] for row in book.of(part) if row["voice"] == voice]
              for part in ("half", "duplex")]  # fmt: skip
        by_voice.append(f"| {voice} | " + " | ".join(f"{sum(ok)} of {len(ok)}" for ok in of) + " |")
    mistakes = []
    for part, title in TITLES.items():
        wrong = [row for row in book.of(part) if not row["ok"]]
        mistakes += ["", f"**{title}**", ""] if wrong else []
        mistakes += [
            "- " + (f"{row['voice']}: " if "voice" in row else "")
            + f"“{str(row['said']).replace(' / ', '” … “')}” → “{row['answer']}”"
            for row in wrong
        ]  # fmt: skip
    today = datetime.date.today().isoformat()
    return "\n".join([
        "# The pocket model's report card", "",
        "What the model that comes with parley gets right when it is asked through a server, for people who",
        "choose it, and for developers who change it.", "",
        f"Measured on {today} on {platform.machine()} with {os.cpu_count()} cores; {busy}.",
        "`python -m training.cascade.card --run FOLDER` asks, the same with `--report docs/pocket-report.md` writes this page.", "",
        "- Nothing asked here was in training.",
        "- Brackets hold the 95 % interval.",
        "- A pattern that was written before judges each answer (`training/cascade/cases`; one of the first list was",
        "  widened after its first run). “I don't know” to a question it should know counts as wrong.", "",
        "| figure | measured | wanted | cases | met | remark |", "|---|---|---|---|---|---|", *table, "",
        "## By voice", "",
        "slt, rms and awb are flite's (American woman, American man, Scottish man); the others are espeak-ng's.", "",
        "| voice | half-duplex | duplex |", "|---|---|---|", *by_voice, "",
        "## Every wrong answer", *mistakes, "",
    ])  # fmt: skip
