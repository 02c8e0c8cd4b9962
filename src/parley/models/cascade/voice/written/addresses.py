"""Addresses, names of files and of users, telephone numbers, versions, codes."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.voice.written.capitals import mixed_case, word_or_letters
from parley.models.cascade.voice.written.rules import ReadingRules
from parley.models.cascade.voice.written.spelling import code, digits, number, spelled

_COUNTRY_ENDS: Final = frozenset(
    "io ai me tv fm ly gg sh uk us ca au nz ie de fr es it nl be ch at eu se no dk fi pl pt ru cn "
    "jp kr in br mx".split()
)
_SAID_FILES: Final = frozenset(
    "doc docx zip tar json toml java log bat jpeg jpg gif yaml yml".split()
)
_LONGEST_PATH: Final = 36


def _site(found: re.Match[str]) -> str:
    port, path = found["port"], found["path"] or ""
    kept = path.rstrip(".,;:!?)\"'")
    words = _host(found["host"].removeprefix("www."))
    if port:
        words += f" colon {digits(port) if len(port) < 4 else code(port)}"
    way = re.split(r"[?#]", kept)[0].strip("/")
    if way and len(way) <= _LONGEST_PATH and not re.search(r"[%=]|\d{5}|[a-f]\d+[a-f]\d", way):
        words += f" slash {_path(way)}"
    return f" {words} {path[len(kept) :]}"


def _windows_path(text: str) -> str:
    return _path(text.replace("\\", "/")).replace("slash", "backslash")


def _path(text: str) -> str:
    text = text.strip()
    said = " slash ".join(_part(one) for one in text.strip("/").split("/") if one)
    return ("slash " if text.startswith("/") else "") + said


def _host(host: str) -> str:
    names = host.rstrip(".").split(".")
    if all(name.isdigit() for name in names):
        return " dot ".join(code(name) for name in names)
    said = [_part(name) for name in names[:1]]
    for name in names[1:]:
        low = name.lower()
        said.append(spelled(low) if low in _COUNTRY_ENDS else _part(low))
    return " dot ".join(said)


def _part(text: str) -> str:
    """A part between dots, slashes, hyphens and underscores."""
    signs = {".": " dot ", "_": " underscore ", "-": " dash ", "+": " plus ", "%": " percent ",
             "~": " tilde "}  # fmt: skip
    text = "".join(signs.get(sign, sign) for sign in text)
    text = re.sub(r"\d+", lambda found: f" {code(found[0])} ", text)
    return re.sub(r"[A-Za-z]+", lambda found: _name(found[0]), text).strip()


def _name(word: str) -> str:
    if len(word) == 1 or (len(word) <= 3 and not re.search("[aeiouy]", word, re.I)):
        return spelled(word)
    return word_or_letters(word) if word.isupper() else word


def _file(found: re.Match[str]) -> str:
    name, end = found[1], found[2]
    if len(name) == 1 and len(end) == 1:
        return found[0]
    signs = {"_": " ", "-": " ", ".": " dot "}
    said = "".join(signs.get(sign, sign) for sign in name)
    said = re.sub(r"[A-Za-z]+", lambda one: _name(one[0]), said)
    return f" {said} dot {end if end in _SAID_FILES else spelled(end)} "


read_addresses: Final = ReadingRules(
    "addresses", part=_part, host=_host, site=_site, windows_path=_windows_path, path=_path,
    file=_file, tag=lambda text: _part(mixed_case(text)),
)  # fmt: skip
_RANGE: Final = re.compile(r"(\d\d0)-([1-9]\d\d0)")


def _phone(text: str) -> str:
    if _RANGE.fullmatch(text) and int(text[:3]) < int(text[4:]):
        return text
    head = "plus " if text.startswith("+") else ""
    free = re.match(r"\+?1[- ]8(\d)\1[- ]", text)
    if free:
        names = {"0": "hundred"}
        same = free[1]
        rest = names.get(same, digits(same * 2))
        head += f"one eight {rest} , "
        text = text[free.end() :]
    groups = re.findall(r"\d+|[A-Z]+", text)
    said = " , ".join(digits(group) if group.isdigit() else group.lower() for group in groups)
    return f" {head}{said} "


def _version(text: str) -> str:
    parts = text.split(".")
    return " point ".join(number(part) if part[0] != "0" else digits(part) for part in parts)


read_codes: Final = ReadingRules("codes", phone=_phone, version=_version)
_PIECES: Final = {"K": "king", "Q": "queen", "R": "rook", "B": "bishop", "N": "knight"}


def _move(found: re.Match[str]) -> str:
    piece, of, taking, pawn, pawn_taking, file, rank, end = found.groups("")
    squares = [number(sign) if sign.isdigit() else spelled(sign) for sign in of + pawn]
    takes = "takes" if taking or pawn_taking else ""
    check = {"+": "check", "#": "checkmate", "": ""}[end]
    words = [_PIECES.get(piece, ""), *squares, takes, spelled(file), number(rank), check]
    return f" {' '.join(words)} "


read_chess: Final = ReadingRules("chess", move=_move)
