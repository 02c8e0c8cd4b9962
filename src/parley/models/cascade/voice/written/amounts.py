"""Money, units, fractions, ratios, ranges, and the signs of mathematics."""

from __future__ import annotations

import re
from typing import Final

from parley.models.cascade.numerals import as_ordinal, in_words
from parley.models.cascade.voice.written.spelling import (
    NUMBER,
    WHOLE,
    any_of,
    code,
    number,
    spelled,
    tables,
)

_TO: Final = r"\s?[-–—]\s?"
_SCALES: Final = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million",
    "mio": "million", "mm": "million", "MM": "million", "bn": "billion", "Bn": "billion",
    "B": "billion", "b": "billion", "tn": "trillion", "T": "trillion", "trn": "trillion",
    "million": "million", "billion": "billion", "trillion": "trillion", "thousand": "thousand",
    "hundred": "hundred", "Million": "million", "Billion": "billion",
}  # fmt: skip
_SCALE: Final = (
    r"(?:[\s-]?(million|billion|trillion|thousand|hundred|Million|Billion|mn|mio|bn|Bn|trn|tn|MM|"
    r"[kKmMbBT])(?![A-Za-z0-9]))"
)
_COINS: Final = {sign: names.split(", ") for sign, names in tables("money")[0].items()}
"""Sign or code to the name of one and of many, and of one and of many hundredths, if any."""
_SIGN: Final = "[" + "".join(sign for sign in _COINS if len(sign) == 1) + "]"
_CODE: Final = any_of(sign for sign in _COINS if len(sign) > 1)
_EURO_STYLE: Final = r"\d{1,3}(?:\.\d{3})*,\d\d(?!\d)"
_MONEY_NUMBER: Final = rf"(?:{_EURO_STYLE}|{NUMBER})"


def read_money(text: str) -> str:
    """Write money as words: `$3.50`, `3,50 €`, `$5 million`, `USD 20`, `$5-10`, `50¢`."""
    text = re.sub(
        rf"(?<=\d)(?:\.\d{{3}})+,\d\d(?=\s?{_SIGN})", lambda f: f[0].replace(".", ""), text
    )
    text = re.sub(rf"(?<![\w.,-])[-−](?={_SIGN}|{_CODE}\s?\d)", " minus ", text)
    text = re.sub(
        rf"({_SIGN})\s?({_MONEY_NUMBER}){_TO}(?!{_SIGN})({_MONEY_NUMBER}){_SCALE}?(?![\d-])",
        lambda f: f" {number(f[2])} to {_money(f, f[1], f[3], f[4])} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"({_CODE}|{_SIGN})\s?({_MONEY_NUMBER}){_SCALE}?"
        rf"(?:({_TO})(?=(?:{_CODE}|{_SIGN})\s?\d))?(?!\d)",
        lambda f: f" {_money(f, f[1], f[2], f[3])}{' to' if f[4] else ''} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"(?<![\w.,])({_MONEY_NUMBER})(?:{_TO}({_MONEY_NUMBER}))?{_SCALE}?\s?"
        rf"({_SIGN}|{_CODE}(?!\w))",
        lambda f: (f" {number(f[1])} to " if f[2] else " ")
        + f"{_money(f, f[4], f[2] or f[1], f[3])} ", text,
    )  # fmt: skip
    text = re.sub(rf"({NUMBER})\s?¢", lambda f: f" {_counted(f[1], 'cent', 'cents')} ", text)
    text = re.sub(
        r"(?<![\w.,£])(\d{1,2})p\b(?!\s?\()",
        lambda f: f" {_counted(f[1], 'penny', 'pence')} ",
        text,
    )
    return re.sub(
        rf"\b({_COIN_ENDS}) ?/ ?({_PER_WORDS})\b",
        lambda f: f"{f[1]} per {_unit(f[2])[0]}", text,
    )  # fmt: skip


_COIN_ENDS: Final = (
    "dollars?|euros?|pounds?|cents?|pence|yen|francs?|rupees?|yuan|thousand|million|kron[ae]r?"
)
_PER_WORDS: Final = (
    "month|mo|year|yr|week|wk|day|hour|hr|minute|min|second|sec|person|user|seat|night|unit|"
    "item|piece|page|token|request|call|head|capita|share|sq|lb|kg|km|gallon|gal|litre|liter|"
    "mile|song|visit|kWh"
)


def _money(found: re.Match[str], sign: str, value: str, scale: str | None) -> str:
    if "," in value and re.fullmatch(_EURO_STYLE, value):
        value = value.replace(".", "").replace(",", ".")
    one, many, *hundredths = _COINS[sign]
    if _is_attributive(found) or "-m" in found[0] or "-b" in found[0]:
        many = one
    if scale:
        return f"{number(value)} {_SCALES[scale]} {many}"
    whole, _, part = value.replace(",", "").partition(".")
    if len(part) != 2 or not hundredths:
        return f"{number(value)} {one if value == '1' else many}"
    said = f"{in_words(int(whole or 0))} {one if int(whole or 0) == 1 else many}"
    if int(part) == 0:
        return said
    rest = f"{in_words(int(part))} {hundredths[int(part) != 1]}"
    return f"{said} and {rest}" if int(whole or 0) else rest


_NO_NOUNS: Final = frozenset(
    "a an per and or to for in of is was at from on away each more less with by as than that which "
    "we you he she they it were are has had left long tall wide high deep between there here below "
    "above off".split()
)


def _is_attributive(found: re.Match[str]) -> bool:
    """True if an amount precedes the noun that it describes: a $5 bill, a 5 km walk, a 90°
    angle."""
    before = found.string[: found.start()].rstrip().lower()
    after = found.string[found.end() :]
    if not re.search(r"(?:^|\s)(?:an?|the|this|that|every|one|each)(?: \w+ to)?$", before):
        return False
    following = re.match(r"[ -]([A-Za-z]+)", after)
    return following is not None and following[1] not in _NO_NOUNS


UNITS: Final = tables("units")[0]
_POWER: Final = {"^2": "square", "2": "square", "^3": "cubic", "3": "cubic"}
_ONE: Final = any_of(UNITS)
_POWERED: Final = (
    rf"(?:{_ONE})(?:\^[23]|(?<=[a-zμ]m)[23](?!\d)|(?<=ft)[23](?!\d)|(?<=\dm)[23](?!\d))?"
)
_UNIT: Final = rf"({_POWERED})(?:/({_POWERED}|capita|person|cup|token|call|head))?"
_SPACED: Final = r"(?:\s|-)?"
_AMOUNT: Final = re.compile(
    rf"(?<![\w.,/])(?<!-)({NUMBER}){_SPACED}{_UNIT}(?![A-Za-z0-9°'])(?!\^|/\w|-[A-Za-z]{{1,2}}\b)"
)
_MIXED_AMOUNT: Final = re.compile(
    rf"(?<![\w.,/-])(\d{{1,3}})[ -](\d{{1,2}})/(\d{{1,2}})[ -]?({_ONE})(?![\w°'/])"
)
_NEED_SPACE: Final = frozenset(("K", "A"))
_NEED_SUM: Final = frozenset(
    "d day days week month year hour minute second people inch mile miles hours".split()
)
_COMPASS: Final = {"N": "north", "S": "south", "E": "east", "W": "west"}
_WHOLE_UNITS: Final = (
    "(?:kilo|centi|milli)?(?:lit|met)(?:er|re)s?|(?:kilo|milli)?grams?|kilos?|euros?|percent|"
    "degrees?|hours?|million|billion"
)
_DECIMAL_COMMA: Final = re.compile(
    rf"(?<=\d),(?=\d{{1,2}}\s?(?:%|°|(?:[kcm]?m|k?g|[kM]?[Ww]|l|(?i:{_WHOLE_UNITS}))\b))"
)
_NOT_JOINED: Final = frozenset("L V W J K".split())


def read_units(text: str) -> str:
    """Write numbers with units as words: `5kg`, `60 km/h`, `5 m²`, `5'10"`, `25%`, `5-km`."""
    text = re.sub(
        r"\b((?:\d+ )?\d{1,2}/\d{1,2})\"(?!\w)",
        lambda f: f"{f[1]} inch{'es' if ' ' in f[1] and not _is_attributive(f) else ''}",
        text,
    )
    text = re.sub(r"(?<=°[CF]) ?/ ?(?=\d)", " or ", text)
    text = _MIXED_AMOUNT.sub(_mixed_amount, text)
    text = re.sub(
        rf"(?<=[\d\"'])\s?[x×]\s?(?={NUMBER}\s?(?:[kcm]?m|ft|in|px|inch|inches)\b|{NUMBER}\")",
        " by ",
        text,
    )
    text = re.sub(
        r"(?<![\w'.])(\d{1,2})'(?=\s|$|[.,;])",
        lambda f: f"{number(f[1])} {'foot' if f[1] == '1' else 'feet'} ",
        text,
    )
    text = re.sub(r"\b[Ss]q\.\s?(ft|m|km|mi|in|yd)\b\.?", r"sq \1", text)
    text = re.sub(
        r"(?<![\w.])(\d) ?(?:ft|feet|foot)\.?,? (\d{1,2}) ?(?:in\b\.?|inch(?:es)?)",
        lambda f: f" {in_words(int(f[1]))} foot {in_words(int(f[2]))} ", text,
    )  # fmt: skip
    text = re.sub(
        r"""(?<![\w.'])(\d)['](\d{1,2})(?:["]|'')?(?!\w)""",
        lambda f: f" {in_words(int(f[1]))} foot {in_words(int(f[2]))} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"""(?<![\w.'"])({NUMBER})"(?=\s[A-Za-z]|\s?[x×]|[.,;]|$)""",
        lambda f: f" {_counted(f[1], 'inch', 'inch' if _is_attributive(f) else 'inches')} ", text,
    )  # fmt: skip
    text = re.sub(
        r"(?<=\d)° ?(?:(\d{1,2})'(?: ?(\d{1,2})\")?)? ?([NSEW])\b",
        lambda f: "° " + (f"{f[1]} minutes " if f[1] else "")
        + (f"{f[2]} seconds " if f[2] else "") + _COMPASS[f[3]], text,
    )  # fmt: skip
    text = _DECIMAL_COMMA.sub(".", text)
    return _AMOUNT.sub(_amount, text)


def _amount(found: re.Match[str]) -> str:
    value, unit, per = found[1], found[2], found[3]
    gap = found[0][len(value) : len(value) + 1]
    if (unit in _NEED_SPACE and gap != " ") or (unit in _NEED_SUM and not per):
        return found[0]
    if unit in _NOT_JOINED and gap == "-":
        return found[0]
    if unit == "in." and not re.match(r"\s*(?:$|[a-z,;x×])", found.string[found.end() :]):
        return found[0]
    one, many = _unit(unit)
    is_one = value == "1" or gap == "-" or _is_attributive(found)
    said = f" {number(value)} {one if is_one else many}"
    if per:
        said += f" per {_unit(per)[0]}"
    stop = ""
    if unit.endswith(".") and not found.string[found.end() :].strip():
        stop = "."
    return f"{said}{stop} "


def _mixed_amount(found: re.Match[str]) -> str:
    """`2 1/2 lbs` as two and a half pounds."""
    whole, top, below, unit = found.groups()
    if int(top) >= int(below) or unit in _NEED_SUM:
        return found[0]
    one, many = _unit(unit)
    part = _share(top, below, is_part=True)
    return f"{number(whole)} and {part} {one if _is_attributive(found) else many} "


def _unit(text: str) -> tuple[str, str]:
    base, power = text, ""
    found = re.fullmatch(r"(.+?)(\^?[23])", text)
    if found and found[1] in UNITS:
        base, power = found[1], _POWER[found[2]]
    one, _, plural = UNITS.get(base, base).partition(", ")
    many = plural or f"{one}s"
    if power and base in ("s", "sec", "min", "h"):
        tail = "squared" if power == "square" else "cubed"
        return f"{one} {tail}", f"{many} {tail}"
    return (f"{power} {one}".strip(), f"{power} {many}".strip())


def _counted(text: str, one: str, many: str) -> str:
    return f"{number(text)} {one if text == '1' else many}"


def read_ranges(text: str) -> str:
    """Read a hyphen or dash between numbers: as to, as minus or not at all."""
    text = re.sub(
        rf"({NUMBER})[eE]([+-]?\d+)\b",
        lambda f: f"{number(f[1])} times ten to the power of {_signed(f[2])} ", text,
    )  # fmt: skip
    text = re.sub(
        rf"\b(50[-/–]50|20/20|80[-/–]20|60[-/–]40|70[-/–]30|90[-/–]10)\b(?![-/\d%]|\s?(?:{_ONE})\b)",
        lambda f: " ".join(number(one) for one in re.findall(r"\d+", f[1])), text,
    )  # fmt: skip
    text = re.sub(r"\b24[/-]7\b", "twenty four seven", text)
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\s?[-–]\s?(?=\d+(?:st|nd|rd|th)\b)", r"\1 to ", text)
    text = re.sub(r"\b1(0{1,3})s(?= of [a-z])", lambda f: _TENS[len(f[1])], text)
    text = re.sub(r"\b9/11\b", "nine eleven", text)
    text = re.sub(
        r"(?<=\d)\s+-\s+(?=\d[\d.,]*\s*(?:[=?]|is\b|equals\b|makes\b|[+×*]))", " minus ", text
    )
    text = re.sub(r"(?<=\d)\s+-\s+(?=\d[\d.,]*\s+[a-z%°])", " to ", text)
    text = re.sub(r"(?<=[=+×*/] )(\S+) - (?=\d)", r"\1 minus ", text)
    text = re.sub(
        rf"(?<![\w.,-])({NUMBER})({_POINTED})?[-–—](?={NUMBER}(?!-\d|/\d)(?![\w]*-in-))",
        r"\1\2 to ",
        text,
    )
    text = re.sub(r"(?<=\d)\s–\s(?=\d)", " to ", text)
    text = re.sub(r"(?<=[\w)])\s[-−]\s(?=[\w(])(?=\S*\d|\S\b)", " minus ", text)
    text = re.sub(r"\s?−\s?(?=[\w(.])", " minus ", text)
    text = re.sub(r"(?<![\w)\].%°-])-(?=\.?\d)", " minus ", text)
    return re.sub(r"(?<=[a-z])–(?=[A-Za-z])", " ", text)


_TENS: Final = {1: "tens", 2: "hundreds", 3: "thousands"}
_POINTED: Final = r"%|\s?°[CF]?|\s?(?:k|M|mm|cm|km|kg|m|g|h|s|min|ms|GB|MB|x)"
_RATED: Final = re.compile(
    r"\b(?:rate\w*|scor\w*|gave|give|gives|got|pain|rating|graded?|stars?)\b", re.I
)
_MINUTE_LIKE: Final = re.compile(r"(?<![\w:.,])(\d+):(\d+)(?::(\d+))?(?![\w:])")


def read_fractions(text: str) -> str:
    """Write fractions, ratios and scores as words: `3/4`, `1 1/2`, `16:9`, `8/10`, `120/80`."""
    text = re.sub(
        r"(?<![\w.,/])(\d+)[\s-](\d{1,2})/(\d{1,3})(?![\w/]|[.,]\d)",
        lambda f: f" {number(f[1])} and {_share(f[2], f[3], is_part=True)} "
        if int(f[2]) < int(f[3]) else f[0], text,
    )  # fmt: skip
    text = re.sub(
        r"(?<![\w.,/])(\d+(?:\.\d+)?)/(\d+)(?![\w/]|[.,]\d)(?:\s?([a-zA-Z]+))?", _fraction, text
    )
    return _MINUTE_LIKE.sub(lambda f: " to ".join(number(one) for one in f.groups() if one), text)


def _fraction(found: re.Match[str]) -> str:
    top, below, noun = found[1], found[2], found[3] or ""
    tail = found[0][found[0].index(below, len(top)) + len(below) :]
    is_rated = noun in ("star", "stars", "points") or bool(
        _RATED.search(found.string[: found.start()][-40:])
    )
    if (
        "." in top
        or (is_rated and below in ("5", "10", "100", "20"))
        or (below in ("100",) and int(top) > 1)
    ):
        return f" {number(top)} out of {number(below)} {tail}"
    if below == "10" and top in ("0", "10"):
        return f" {number(top)} out of ten {tail}"
    if int(below) < 2 or int(top) >= int(below) or not (
        int(below) <= 20 or below in ("100", "1000", "32", "64", "50", "25")
    ):  # fmt: skip
        return f" {number(top)} over {number(below)} {tail}"
    share = _share(top, below, is_part=False)
    unit = UNITS.get(noun)
    is_thing = noun in (
        "cup",
        "cups",
        "mile",
        "inch",
        "hour",
        "pint",
        "teaspoon",
        "tablespoon",
        "pound",
        "ounce",
        "glass",
    )
    if (unit and noun not in ("in", "d", "a")) or is_thing:
        name = _unit(noun)[0] if unit else noun.removesuffix("s") if noun != "glass" else noun
        article = "an" if name == "hour" or name[0] in "aeio" else "a"
        return (
            f" half {article} {name} " if share == "one half" else f" {share} of {article} {name} "
        )
    return f" {share} {tail}"


def _share(top: str, below: str, *, is_part: bool) -> str:
    count, size = int(top), int(below)
    names = {2: ("half", "halves"), 4: ("quarter", "quarters")}
    if size in names:
        one, many = names[size]
    else:
        one = as_ordinal(size)
        one = {100: "hundredth", 1000: "thousandth"}.get(size, one)
        many = one + "s"
    if count == 1:
        return f"a {one}" if is_part else f"one {one}"
    return f"{in_words(count)} {many}"


_POWER_NAMES: Final = {"2": "squared", "3": "cubed"}
_GREEK: Final = dict(
    zip("αβγδεζηθικλμνξοπρστυφχψω",
        ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
         "sigma tau upsilon phi chi psi omega").split(), strict=True)
)  # fmt: skip
_OPERATORS: Final = (
    ("<=>", " "), ("!=", "≠"), ("==", "="), ("<=", "≤"), (">=", "≥"), ("=>", "→"), ("->", "→"),
    ("-->", "→"), ("<->", "↔"),
)  # fmt: skip
_SIGNS: Final = {
    "&": " and ", "%": " percent ", "+": " plus ", "=": " equals ", "@": " at ", "#": " number ",
    "°": " degrees ", "×": " times ", "÷": " divided by ", "*": " ", "_": " ", "|": " ",
    "\\": " ", "±": " plus or minus ", "∓": " minus or plus ", "√": " the square root of ",
    "∞": " infinity ", "→": " to ", "⇒": " implies ", "↔": " and ", "←": " from ", "∈": " in ",
    "∑": " the sum of ", "∫": " the integral of ", "∂": " partial ", "∆": " delta ",
    "∇": " nabla ", "≡": " is identical to ", "∝": " is proportional to ", "∀": " for all ",
    "∃": " there exists ", "∪": " union ", "∩": " intersection ", "⊂": " is a subset of ",
    "∴": " therefore ", "§": " section ", "¶": " paragraph ", "©": " copyright ", "•": " , ",
    "^": " to the power of ", "Ω": " ohm ", "⌘": " command ", "⌥": " option ", "$": " dollars ",
    "€": " euros ", "£": " pounds ", "¢": " cents ", "~": " about ", "≈": " about ",
}  # fmt: skip


_COMPARED: Final = {
    "≥": " is greater than or equal to ", "≤": " is less than or equal to ", "<": " is less than ",
    ">": " is greater than ", "≠": " is not equal to ", "≈": " is about ", "~": " to ",
}  # fmt: skip


def read_signs(text: str) -> str:
    """Write mathematical and other symbols as words."""
    text = text.replace("&&", "&").replace("||", " or ")
    for sign, plain in _OPERATORS:
        text = text.replace(sign, plain)
    text = re.sub(r"\b([a-z])([a-z])(?=\^)", lambda f: spelled(f[1] + f[2]), text)
    text = re.sub(r"§§\s?(?=\d)", " sections ", text)
    text = re.sub(
        r"(?<![\w.,])(\d{3,4})\s?[x×]\s?(\d{3,4})(?![\w.,]\d)",
        lambda f: f"{code(f[1])} by {code(f[2])} ", text,
    )  # fmt: skip
    text = re.sub(r"(?<=\d)\s?[x×*]\s?(?=\d)", _by_or_times, text)
    text = re.sub(
        rf"({NUMBER})x(?=\s*[-+=^)]|\s(?:plus|minus|equals|is)\b)|(?<=[-+=] )({NUMBER})x\b",
        lambda f: f"{number(f[1] or f[2])} {spelled('x')}", text,
    )  # fmt: skip
    text = re.sub(rf"({NUMBER})[x×](?![\w])", lambda f: f"{number(f[1])} times ", text)
    text = re.sub(
        r"(?<=\S)\s*\^\{?([-+−]?\w+)\}?",
        lambda f: f" {_POWER_NAMES[f[1]]} "
        if f[1] in _POWER_NAMES and not re.search(r"\b10$", f.string[: f.start()])
        else f" to the power of {_signed(f[1])} ", text,
    )  # fmt: skip
    text = re.sub(r"(?<=\w)\s\*\s(?=\w)|(?<=\b[a-z0-9])\*(?=[a-z0-9]\b)", " times ", text)
    text = re.sub(r"(?<=\d)\s/\s(?=\d)", " divided by ", text)
    text = re.sub(r"(?<=\d)/(?=\d)", " divided by " if "=" in text else " over ", text)
    text = re.sub(r"(?<=\d)!(?=\s*[-=+*/)])", " factorial ", text)
    text = re.sub(
        r"\b([fgh])\(([a-z]|\d+)\)", lambda f: f"{spelled(f[1])} of {spelled(f[2])}", text
    )
    text = re.sub(
        r"(?<=[\w)])\s?(≥|≤|<|>|≠|≈|(?<=\d)~)\s?(?=[\w.(-]|$)",
        lambda f: _COMPARED[f[1]], text,
    )  # fmt: skip
    for sign, word in (("≥", " at least "), ("≤", " at most "), ("<", " less than "),
                       (">", " greater than "), ("≠", " not equal to ")):  # fmt: skip
        text = text.replace(sign, word)
    text = re.sub(rf"(?<!\w)#(?={WHOLE})", " number ", text)
    text = re.sub(r"(?<=[a-zA-Z])/(?=[a-zA-Z])|\s/\s", " or ", text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, word)
    text = re.sub(r"(?<!\w)([A-Za-zα-ω]|\))/(?=\d|\()", r"\1 over ", text)
    text = text.replace("/", " ")
    return "".join(f" {_GREEK[sign.lower()]} " if sign.lower() in _GREEK else sign for sign in text)


def _by_or_times(found: re.Match[str]) -> str:
    text = found.string
    if re.search(r"\d{3}$", text[: found.start()]) and re.match(r"\d{3}", text[found.end() :]):
        return " by "
    if "*" in found[0] or "=" in text or "^" in text[found.end() : found.end() + 8]:
        return " times "
    if "×" in found[0] and re.search(r"(?<!\d)\d{1,2}$", text[: found.start()]) and re.match(
        r"\d{1,3}(?!\d)(?!\s?(?:mm|cm|m|inch|px|in)\b)", text[found.end() :]
    ):  # fmt: skip
        return " times "
    return " by "


def _signed(text: str) -> str:
    if not re.fullmatch(r"[-+−]?[0-9]+", text):
        return text
    return ("minus " if text[0] in "-−" else "") + number(text.lstrip("+-−"))


def read_numbers(text: str) -> str:
    """Write numbers left by the other rules as words, including ordinals and thousands."""
    text = re.sub(
        rf"(?<![\w.,])({WHOLE})(?:st|nd|rd|th)\b",
        lambda f: as_ordinal(int(f[1].replace(",", ""))),
        text,
    )
    text = re.sub(
        rf"(?<![\w.,])({NUMBER})\s?(k|M|mn|bn)(?![\w/'-])",
        lambda f: f"{number(f[1])} {_SCALES[f[2]]} ", text,
    )  # fmt: skip
    text = re.sub(r"(?<=\d)\+(?=\s|[.,;!?)]|$)", " plus ", text)
    text = re.sub(r"(?<![A-Za-z'])([A-Za-z])(?=\d)", lambda f: spelled(f[1]), text)
    text = re.sub(r"(?<=\d)([A-Za-z])(?![A-Za-z'])", lambda f: spelled(f[1]), text)
    text = re.sub(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", " ", text)
    text = re.sub(r"\d[\d,]*(?:\.\d+)?|\.\d+", _number, text)
    return text


def _number(found: re.Match[str]) -> str:
    text = found[0].rstrip(",")
    trailing = found[0][len(text) :]
    if "," in text and not re.fullmatch(rf"{WHOLE}(?:\.\d+)?", text):
        return ", ".join(number(part) for part in text.split(",") if part) + trailing
    return f" {number(text)}{trailing} " if found[0][0] == "." else number(text) + trailing


def plain_groups(text: str) -> str:
    """Rewrite thousands separated by spaces, points or apostrophes in the American way."""
    text = re.sub(
        r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])", lambda f: f[0].replace(".", ""), text
    )
    text = re.sub(r"(?<![\w.,])\d{1,3}(?:['\u202f\u00a0\u2009]\d{3})+(?!\d)",
                  lambda f: re.sub(r"\D", "", f[0]), text)  # fmt: skip
    text = re.sub(r"\b\d{1,2}(?:,\d\d)+,\d{3}\b", lambda f: f[0].replace(",", ""), text)
    text = re.sub(r"\d{19,}", lambda f: " ".join(re.findall(r"\d{1,3}", f[0])), text)
    text = re.sub(r"[\u00a0\u202f\u2009\u2007\u200a]", " ", text)
    return re.sub(
        rf"(?<![\w.,+] )(?<![\w.,+])[1-9]\d{{0,2}}(?: \d{{3}})+"
        rf"(?=\s?(?:{_ONE}|{_SIGN})(?!\w)|\s(?:people|inhabitants|years|times|users)"
        r"|(?<= 000)(?![\d ]))",
        lambda f: f[0].replace(" ", ""), text,
    )  # fmt: skip
