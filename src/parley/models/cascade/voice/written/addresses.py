"""Addresses, names of files and of people on the net, telephone numbers, versions, codes."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.voice.written.capitals import mixed_case, word_or_letters
from parley.models.cascade.voice.written.spelling import code, digits, number, spelled

_SAID_ENDS: Final = frozenset(
    "com org net info biz app dev gov edu blog shop online site page".split()
)
_ENDS: Final = (
    "com|org|net|edu|gov|info|biz|io|ai|dev|app|co|me|tv|fm|ly|gg|sh|xyz|blog|shop|online|site|"
    "page|uk|us|ca|au|nz|ie|de|fr|es|it|nl|be|ch|at|eu|se|no|dk|fi|pl|pt|ru|cn|jp|kr|in|br|mx|"
    "int|mil"
)
_FILES: Final = (
    "py|js|ts|jsx|tsx|md|txt|pdf|docx?|xlsx?|pptx?|csv|json|ya?ml|toml|html?|css|xml|zip|tar|gz|"
    "jpe?g|png|gif|svg|mp3|mp4|wav|flac|mov|sh|bat|exe|c|cpp|h|rs|go|java|rb|php|sql|log|ini|"
    "cfg|conf|env"
)
_SAID_FILES: Final = frozenset(
    "doc docx zip tar json toml java log bat jpeg jpg gif yaml yml".split()
)
_HOST: Final = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+(?:{_ENDS})"
_MAIL: Final = re.compile(r"(?<![\w.+-])([A-Za-z0-9._%+-]+)@((?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})\b")
_LINK: Final = re.compile(
    r"\b(?:https?|ftp|wss?)://(?:[^\s/@]+@)?([\w.-]+)(?::(\d+))?((?:[/?#][^\s<>\"]*)?)", re.I
)
_SITE: Final = re.compile(
    rf"(?<![\w@.])(?:www\.({_HOST}|[\w-]+(?:\.[\w-]+)+)|({_HOST}))(?::(\d+))?(/[^\s<>\"]*)?(?![\w@])"
)
_FILE: Final = re.compile(
    rf"(?<![\w@.])((?:[A-Za-z0-9_]|(?<=\w)[-.](?=\w))*[A-Za-z0-9_])\.({_FILES})(?![\w@])(?!\.\w)"
)
_PATH: Final = re.compile(r"(?<![\w.])(~?(?:/[A-Za-z0-9_.-]+){2,}/?|~/[\w.-]+(?:/[\w.-]+)*)")
_HANDLE: Final = re.compile(r"(?<![\w.])@([A-Za-z_]\w*)")
_TAG: Final = re.compile(r"(?<![\w&])#([A-Za-z]\w*)")
_LONGEST_PATH: Final = 36


def read_addresses(text: str) -> str:
    """Write addresses and files as words: `john@example.com` as john at example dot com."""
    text = _MAIL.sub(lambda found: f" {_part(found[1])} at {_host(found[2])} ", text)
    text = _LINK.sub(_link, text)
    text = _SITE.sub(lambda found: _place(found[1] or found[2], found[3], found[4] or ""), text)
    text = re.sub(r"\blocalhost:(\d+)", lambda found: f" localhost colon {code(found[1])} ", text)
    text = re.sub(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?::(\d+))?(?![\w.]\d)", _ip, text)
    text = re.sub(r"(?<!\w)([A-Z]):((?:\\[\w.-]+)+)", _windows_path, text)
    text = _PATH.sub(_kept_path, text)
    text = re.sub(
        r"\b(Node|Vue|Next|React|Express|Three|D3|Nuxt)\.js\b",
        lambda found: f" {found[1]} dot {spelled('JS')} ", text,
    )  # fmt: skip
    text = re.sub(r"\bASP\.NET\b", f" {spelled('ASP')} dot net ", text)
    text = re.sub(r"(?<![\w.])\.NET\b", " dot net ", text)
    text = _FILE.sub(_file, text)
    text = _HANDLE.sub(lambda found: f" at {_part(found[1])} ", text)
    return _TAG.sub(lambda found: f" hashtag {_part(mixed_case(found[1]))} ", text)


def _link(found: re.Match[str]) -> str:
    rest = found[3].rstrip(".,;:!?)\"'")
    return _place(found[1], found[2], rest) + found[3][len(rest) :]


def _place(host: str, port: str | None, path: str) -> str:
    kept = path.rstrip(".,;:!?)\"'")
    tail = path[len(kept) :]
    host = host.removeprefix("www.")
    words = _host(host) + (f" colon {digits(port)}" if port and len(port) < 4 else "")
    if port and len(port) >= 4:
        words += f" colon {code(port)}"
    way = re.split(r"[?#]", kept)[0].strip("/")
    if way and len(way) <= _LONGEST_PATH and not re.search(r"[%=]|\d{5}|[a-f]\d+[a-f]\d", way):
        words += f" slash {_path(way)}"
    return f" {words} {tail}"


def _windows_path(found: re.Match[str]) -> str:
    said = _path(found[2].replace("\\", "/")).replace("slash", "backslash")
    return f" {spelled(found[1])} colon {said} "


def _kept_path(found: re.Match[str]) -> str:
    way = found[1].rstrip(".")
    return f" {_path(way)} {found[1][len(way) :]}"


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
        is_end = low in _ENDS.split("|") and low not in _SAID_ENDS and low != "co"
        said.append(spelled(low) if is_end and len(low) <= 2 else _part(low))
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


def _ip(found: re.Match[str]) -> str:
    port = f" colon {code(found[2])}" if found[2] else ""
    return f" {' dot '.join(code(one) for one in found[1].split('.'))}{port} "


def _file(found: re.Match[str]) -> str:
    name, end = found[1], found[2]
    if len(name) == 1 and len(end) == 1:
        return found[0]
    signs = {"_": " ", "-": " ", ".": " dot "}
    said = "".join(signs.get(sign, sign) for sign in name)
    said = re.sub(r"[A-Za-z]+", lambda one: _name(one[0]), said)
    return f" {said} dot {end if end in _SAID_FILES else spelled(end)} "


_CALLS: Final = r"(?:call|calls|called|dial|dialed|dialled|text|phone|ring|emergency number)"
_SECRET: Final = (
    r"(?:pins?|codes?|passcode|password|zip|postcode|otp|serial|extension|ext\.?|account|order|"
    r"booking|reference|tracking|confirmation|case|ticket|isbn|id)"
)
_PLACES: Final = (
    r"(?:[Rr]oom|[Ff]light|[Rr]oute|[Hh]ighway|[Ii]nterstate|[Ss]uite|[Aa]partment|[Aa]pt\.?|[Gg]ate|"
    r"Xbox|Boeing|Airbus|Porsche|Peugeot|Area|[Bb]us|[Ll]ine|[Tt]rain|[Cc]hannel)"
)
_VERSIONED: Final = (
    r"(?:Python|Java|Ruby|Node|PHP|Ubuntu|Debian|Fedora|iOS|Android|macOS|Windows|Linux|Firefox|"
    r"Chrome|PyTorch|TensorFlow|CUDA|[Vv]ersion|[Rr]elease|HTTP|USB|Bluetooth|[Ss]ection|"
    r"[Cc]hapter|[Ee]xercise|[Cc]lause|[Ff]igure|[Tt]able)"
)
_STREETS: Final = (
    "St|Street|Ave|Avenue|Rd|Road|Blvd|Boulevard|Ln|Lane|Dr|Drive|Way|Court|Ct|Place|Square"
)
_GROUPS: Final = r"(?:[ .-]|, )"
_PHONES: Final = tuple(
    re.compile(rf"(?<![\w.,$€£#-]){pattern}(?![\w%°])(?![.,-]\d)")
    for pattern in (
        rf"\+\d{{1,3}}(?:{_GROUPS}?\(?\d{{1,4}}\)?){{2,5}}",
        rf"(?:1{_GROUPS})?\(\d{{3}}\){_GROUPS}?\d{{3}}{_GROUPS}\d{{4}}",
        r"1-8\d\d-(?:\d{3}-\d{4}|[A-Z]{7}|\d{3}-[A-Z]{4}|[A-Z]{3}-\d{4})",
        r"(?:1[ .-])?\d{3}([ .-])\d{3}\1\d{4}",
        r"\d{3}-\d{4}",
        r"\d{4}([ -])\d{4}\1\d{4}\1\d{4}",
        r"0\d{2,4}[ /-]\d{3,4}(?:[ -]?\d{2,4}){0,2}",
        r"\(0\d{2,4}\)[ /-]?\d{3,4}(?:[ -]?\d{2,4}){0,2}",
        r"\d{3}-\d{2}-\d{4}",
    )
)


def read_codes(text: str) -> str:
    """Write telephone numbers, other numbers read digit by digit, and versions as words."""
    for pattern in _PHONES:
        text = pattern.sub(lambda found: _phone(found[0]), text)
    text = re.sub(
        r"\b(ISBN(?:-1[03])?:?) ((?:\d[ -]?){9,13}X?)(?!\w)",
        lambda found: f"{found[1]} {_phone(found[2])}", text,
    )  # fmt: skip
    text = re.sub(
        r"(?<![\w.,$€£-])(?:116 123\b|(?:911|988|112|999)(?= (?:calls?|operators?|dispatch\w*|"
        r"emergenc\w*|services?)\b| in (?:the )?[A-Z]))",
        lambda found: _phone(found[0]), text,
    )  # fmt: skip
    text = re.sub(
        r"\b([ABCDGMP])2([ABCGMP])\b", lambda f: f"{spelled(f[1])} to {spelled(f[2])}", text
    )
    text = re.sub(
        rf"\b({_CALLS})((?: the police)?(?: at| on)?) (\d{{3,}})(?= or (\d{{3,}})\b)?(?![\d%:.]\d)",
        lambda found: f"{found[1]}{found[2]} {digits(found[3])} ", text, flags=re.I,
    )  # fmt: skip
    text = re.sub(
        rf"\b(\d{{3,4}})(?=[A-Z]?(?: [A-Z]\w+){{1,3}},? (?:{_STREETS})\b)",
        lambda f: code(f[1]),
        text,
    )
    text = re.sub(r"\bor text (\d{3,})\b", lambda found: f"or text {digits(found[1])}", text)
    text = re.sub(
        rf"\b({_SECRET}(?: code| number| no\.?)?(?: is|:| of)?) #?(\d{{3,}})(?![\w%]|[.,:]\d)",
        lambda found: f"{found[1]} {digits(found[2])} ", text, flags=re.I,
    )  # fmt: skip
    text = re.sub(r"(?<=[A-Z]{2} )(\d{5})(?:-(\d{4}))?(?!\w)", lambda f: digits(f[0]), text)
    text = re.sub(
        rf"\b({_PLACES}(?: [A-Z]{{2}})?) ?(\d{{3,4}})(?:-(\d{{2,4}}))?(?![\w%]|[.,:-]\d)",
        lambda found: f"{found[1]} {code(found[2])} " + (code(found[3]) if found[3] else ""), text,
    )  # fmt: skip
    text = re.sub(
        r"(?<![\w.,])[vV]?(\d+(?:\.\d+){2,})(?!\w)",
        lambda found: f" {_version(found[1], has_name=found[0][0] in 'vV')} ", text,
    )  # fmt: skip
    text = re.sub(
        r"(?<![\w.])[vV](\d+(?:\.\d+)?)(?![\w])",
        lambda found: f" {_version(found[1], has_name=True)} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"\b({_VERSIONED})[ /](\d+\.\d{{1,2}})(?![\w.]\d)",
        lambda found: f"{found[1]} {_version(found[2], has_name=False)} ", text,
    )  # fmt: skip
    return re.sub(r"(?<![\w.,])(00\d+)(?![\w.]\d)", lambda found: f" {digits(found[1])} ", text)


_RANGE: Final = re.compile(r"(\d\d0)-([1-9]\d\d0)")


_PIECES: Final = {"K": "king", "Q": "queen", "R": "rook", "B": "bishop", "N": "knight"}
_MOVE: Final = re.compile(
    r"(?<![\w-])(?:([KQRBN])([a-h]?[1-8]?)(x?)|([a-h])(x))([a-h])([1-8])([+#]?)(?![\w#])"
)


def read_chess(text: str) -> str:
    """Write moves such as `Nxf3+` as words; `e4` reads as it is."""
    text = re.sub(
        r"(?<![\w-])O-O(-O)?(?![\w-])", lambda f: f" castles {'long' if f[1] else ''} ", text
    )

    def move(found: re.Match[str]) -> str:
        piece, of, taking, pawn, pawn_taking, file, rank, end = found.groups("")
        squares = [number(sign) if sign.isdigit() else spelled(sign) for sign in of + pawn]
        takes = "takes" if taking or pawn_taking else ""
        check = {"+": "check", "#": "checkmate", "": ""}[end]
        words = [_PIECES.get(piece, ""), *squares, takes, spelled(file), number(rank), check]
        return f" {' '.join(words)} "

    return _MOVE.sub(move, text)


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


def _version(text: str, *, has_name: bool) -> str:
    said = " point ".join(
        number(part) if part[0] != "0" else digits(part) for part in text.split(".")
    )
    return f"version {said}" if has_name else said
