"""Bytes ↔ messages: bounded JSON, strict base64, and errors that name the field.

A message in its published form is decoded directly into its struct. Any other is read in four
steps: parse the JSON, rename aliases to the published names, drop nulls (`null` means absent), and
convert to the struct, or report the wrong field. `Shape` describes one message, `Messages` those of
a protocol. Knows no dialect and no numpy; PCM stays bytes here.

Source: service.md 4.0 (common rules) and 4.7 (aliases).
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast, get_args

import msgspec
from msgspec import inspect

from parley import errors
from parley.protocol import long_base64
from parley.protocol.long_base64 import LongBase64

LONG_BYTES: Final = 1 << 20
"""Messages up to this size are parsed in one call, which takes about 2 ms."""

SAMPLE_BYTES: Final = 4
"""One float32 sample, little-endian."""

MESSAGE_DEPTH_LIMIT: Final = 64
"""Maximum nesting of any message. Code that walks or copies messages may be recursive, so deeper
ones are refused when they are read."""
DEPTH_LIMIT: Final = 32
"""Maximum nesting that is converted; the deepest published message has five levels."""

_EXACT_INTEGERS: Final = 2.0**53

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_MALFORMED = re.compile(
    r"JSON is malformed: (?P<what>.+) \(byte (?P<byte>\d+)\)|Input data was truncated", re.DOTALL
)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
Client = TypeVar("Client")
Server = TypeVar("Server")


# ---- JSON ----------------------------------------------------------------------------------


class _Tagged(msgspec.Struct):
    type: Any = None


_tagged = msgspec.json.Decoder(_Tagged)
_encoder = msgspec.json.Encoder(enc_hook=long_base64.whole)


def parse(raw: bytes | bytearray | str) -> Any:
    """JSON text to plain values. Long base64 in a message above `LONG_BYTES` becomes `LongBase64`,
    and `raw` must not change while that is used.

    Raises:
        InvalidJson: not JSON, not UTF-8, or nested too deeply for the parser.
        InvalidPayload: more than `MESSAGE_DEPTH_LIMIT` levels, or megabytes of text other than
            base64.
    """
    found: dict[str, str] = {}
    if len(raw) > LONG_BYTES:
        raw, found = long_base64.cut_out(raw)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _not_json(error, raw, is_whole=not found) from None
    if _is_deeper(value, raw, MESSAGE_DEPTH_LIMIT):
        raise errors.InvalidPayload("The message is nested too deeply.")
    return long_base64.put_back(value, found) if found else value


def _not_json(
    error: Exception, raw: bytes | bytearray | str, *, is_whole: bool
) -> errors.InvalidJson:
    """The parser's message, with the position; without it if the parser saw only parts of the
    message."""
    if not raw or raw.isspace():
        return errors.InvalidJson("The message is empty; it must be JSON text.")
    found = _MALFORMED.fullmatch(str(error))
    if found is None or not is_whole:
        return errors.InvalidJson()
    why = found["what"] or "it ends too early"
    at = f" at byte {found['byte']}" if found["byte"] else ""
    return errors.InvalidJson(f"{errors.InvalidJson.sentence[:-1]}: {why}{at}.")


def _is_deeper(value: Any, raw: bytes | bytearray | str, limit: int) -> bool:
    """True if `value`, read from `raw`, is nested more than `limit` levels deep."""
    if isinstance(raw, str):
        brackets = raw.count("{") + raw.count("[")
    else:
        brackets = raw.count(b"{") + raw.count(b"[")
    if brackets <= limit:
        return False
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def type_of(raw: bytes | bytearray | str) -> str:
    """The message type of a frame, without decoding the rest; cheap even for large frames.

    Raises:
        InvalidJson: not JSON.
        UnknownEvent: JSON, but not an object with a string `type`.
        InvalidPayload: megabytes of text other than base64.
    """
    found: dict[str, str] = {}
    if len(raw) > LONG_BYTES:
        raw, found = long_base64.cut_out(raw)
    try:
        name = _tagged.decode(raw).type
    except msgspec.ValidationError:
        raise errors.UnknownEvent("(not an object)") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _not_json(error, raw, is_whole=not found) from None
    if not isinstance(name, str):
        raise errors.UnknownEvent("(none)")
    return name


def encode_media(message: object) -> bytearray:
    """Encode a message that may contain `LongBase64` as JSON, in pieces."""
    marks = long_base64.Marks()
    encoded = msgspec.json.encode(message, enc_hook=marks)
    return long_base64.spliced(encoded, marks.found)


def encode(message: object) -> str:
    """A message as the text of one frame, with all fields."""
    return _encoder.encode(message).decode()


# ---- what the requirement texts do not name ------------------------------------------------

EXTENSION: Final = msgspec.Meta(extra_json_schema={"x-extension": True})
"""Marks a field of ours: it is sent only to clients that requested extensions."""

WHEN_KNOWN: Final = msgspec.Meta(extra_json_schema={"x-when-known": True})
"""Marks a field that is omitted while its value is unknown; with extensions it is `null`."""


def encode_for(message: msgspec.Struct, *, extensions: bool) -> str | None:
    """A server's message as the text of one frame; None if nothing is to be sent.

    Without extensions it contains only what is published: a message with a `published` method is
    replaced by its result (None: not sent), and fields marked `EXTENSION` are omitted.
    """
    if extensions:
        return encode(message)
    published = getattr(message, "published", None)
    if published is not None:
        replaced: msgspec.Struct | None = published()
        if replaced is None:
            return None
        message = replaced
    ours, when_known = _marked(type(message))
    if not ours and not when_known:
        return encode(message)
    fields = msgspec.to_builtins(message, enc_hook=long_base64.whole)
    for name in ours:
        fields.pop(name, None)
    for name in when_known:
        if fields.get(name) is None:
            fields.pop(name, None)
    return _encoder.encode(fields).decode()


@functools.cache
def _marked(struct: type[msgspec.Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """The wire names of a struct's fields marked `EXTENSION` and `WHEN_KNOWN`."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    marks: dict[str, set[str]] = {"x-extension": set(), "x-when-known": set()}
    for each in info.fields:
        if isinstance(each.type, inspect.Metadata):
            for mark in marks.keys() & (each.type.extra_json_schema or {}).keys():
                marks[mark].add(each.encode_name)
    return frozenset(marks["x-extension"]), frozenset(marks["x-when-known"])


# ---- objects to structs --------------------------------------------------------------------


Aliases = Mapping[str, tuple[str, ...]]
"""Published field name → other accepted names, in order of priority."""


class Converter(Generic[T]):
    """Converts plain values to a type, as `msgspec.convert` does, in any thread.

    msgspec inspects a type when it first decodes or converts to it, and publishes the result to
    other threads before it is complete: using it then crashes the process with a segmentation
    fault. So types must be inspected when modules are imported: use this class and msgspec's
    decoders, which inspect types when they are constructed, instead of its functions that take a
    type.

    Args:
        kind: a Struct, or any other type that msgspec supports.
        is_text: True if numbers and booleans may be text.
    """

    def __init__(self, kind: type[T], *, is_text: bool = False) -> None:
        self._kind = kind
        self._is_text = is_text
        msgspec.json.Decoder(kind)

    def convert(self, value: object) -> T:
        """Convert a value.

        Raises:
            msgspec.ValidationError: it does not fit.
        """
        return msgspec.convert(value, self._kind, strict=not self._is_text)


@dataclass(frozen=True, slots=True)
class Shape:
    """Decoder of one message type.

    Args:
        struct: the result's type.
        aliases: other names of its fields.
        lists: fields that may be a single string.
        adjust: last change to the object before conversion, e.g. lifting a nested field.
        lifts: fields that `adjust` changes although they are valid.
        usual: fields whose absence `adjust` checks.
        as_is: fields that are taken unchanged, including nulls.
        is_text: True if numbers and booleans may be text, as in the query of a URL.
        failed: makes the error for a wrong value at `field` (a dotted path) from a sentence.
        absent: makes the error for a missing required field.
    """

    struct: type[msgspec.Struct]
    aliases: Aliases = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    adjust: Callable[[dict[str, Any]], None] | None = None
    lifts: frozenset[str] = frozenset()
    usual: frozenset[str] = frozenset()
    as_is: frozenset[str] = frozenset()
    is_text: bool = False
    failed: Callable[[str, str], errors.BadInput] = lambda sentence, where: errors.InvalidPayload(
        sentence, field=where
    )
    absent: Callable[[str], errors.BadInput] = errors.MissingField
    converter: Converter[msgspec.Struct] = field(init=False, repr=False, compare=False)
    decoder: msgspec.json.Decoder[msgspec.Struct] = field(init=False, repr=False, compare=False)
    indirect: frozenset[str] = field(init=False, repr=False, compare=False)
    """Fields whose presence prevents decoding directly into the struct."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "converter", Converter(self.struct, is_text=self.is_text))
        object.__setattr__(self, "decoder", msgspec.json.Decoder(self.struct))
        others = (name for names in self.aliases.values() for name in names)
        object.__setattr__(self, "indirect", self.lifts.union(others))


def shapes_of(messages: Any, *, as_is: Iterable[str] = ()) -> dict[str, Shape]:
    """Plain shapes of a union of message types, by their tags. `as_is`: see `Shape`."""
    names = frozenset(as_is)
    kinds = get_args(messages)
    return {str(kind.__struct_config__.tag): Shape(kind, as_is=names) for kind in kinds}


class Messages(Generic[Client, Server]):
    """The messages of one protocol.

    Args:
        shapes: of client messages, by type.
        server: messages of servers: a struct or a union.
    """

    _fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def __init__(self, shapes: Mapping[str, Shape], server: Any) -> None:
        self.shapes = shapes
        self._by_tag = {f'"{name}"'.encode(): (name, shape) for name, shape in shapes.items()}
        self._server: msgspec.json.Decoder[Server] = msgspec.json.Decoder(server)

    def decode_client(
        self, raw: bytes | str, check: Callable[[str], None] = lambda type_name: None
    ) -> Client:
        """Read one frame of a client.

        Args:
            check: called with a known type before the rest is examined; raises to refuse it.

        Raises:
            InvalidJson: not JSON.
            UnknownEvent: not an object, no type, or an unknown type.
            BadInput: the errors made by the shape's `failed` and `absent`.
        """
        if len(raw) > LONG_BYTES:
            return self.read_any(raw, check)
        try:
            fields = self._fields.decode(raw)
            name, shape = self._by_tag[bytes(fields["type"])]
        except (msgspec.MsgspecError, RecursionError, UnicodeError, KeyError):
            return self.read_any(raw, check)
        check(name)
        brackets = raw.count("{") + raw.count("[") if isinstance(raw, str) else DEPTH_LIMIT + 1
        is_plain = shape.indirect.isdisjoint(fields) and shape.usual <= fields.keys()
        if is_plain and brackets <= DEPTH_LIMIT:
            try:
                return cast(Client, shape.decoder.decode(raw))
            except msgspec.ValidationError:
                # It may have nulls or aliases; otherwise the slow path reports the error.
                pass
        return self.read_any(raw, check)

    def read_any(
        self, raw: bytes | str, check: Callable[[str], None] = lambda type_name: None
    ) -> Client:
        """The slow path of `decode_client`, which accepts all accepted spellings."""
        value = parse(raw)
        if not isinstance(value, dict):
            raise errors.UnknownEvent("(not an object)")
        name = value.get("type")
        if not isinstance(name, str):
            raise errors.UnknownEvent("(none)")
        shape = self.shapes.get(name)
        if shape is None:
            raise errors.UnknownEvent(name)
        check(name)
        return cast(Client, read(value, shape))

    def decode_server(self, raw: bytes | str) -> Server:
        """Read one frame of a server, for clients: unknown fields are ignored.

        Raises:
            InvalidJson: not JSON.
            UnknownEvent: a type this version does not know; clients skip it.
            InvalidPayload: a known type with values that do not fit.
        """
        try:
            return self._server.decode(raw)
        except msgspec.ValidationError as error:
            name = type_of(raw)
            if str(error).endswith("`$.type`"):
                raise errors.UnknownEvent(name) from None
            raise errors.InvalidPayload(f"{name}: {error}") from None
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise _not_json(error, raw, is_whole=True) from None


def read(value: dict[str, Any], shape: Shape) -> Any:
    """Convert a parsed object to `shape.struct`, or raise the shape's error."""
    clean = without_nulls(value)
    for name in shape.as_is & clean.keys():
        clean[name] = value[name]
    rename(clean, shape.aliases)
    for name in shape.lists:
        if isinstance(clean.get(name), str):
            clean[name] = [clean[name]]
    if shape.adjust is not None:
        shape.adjust(clean)
    return converted(clean, shape)


def converted(value: object, shape: Shape) -> Any:
    """Convert a parsed object, with its nulls, to `shape.struct`, or raise the shape's error."""
    try:
        return shape.converter.convert(value)
    except msgspec.ValidationError as error:
        raise _explain(str(error), shape, value) from None


def rename(value: dict[str, Any], aliases: Aliases) -> None:
    """Rename aliases to their published names; the published name takes precedence, then the first
    alias."""
    for name, others in aliases.items():
        for other in others:
            found = value.pop(other, None)
            if found is not None and name not in value:
                value[name] = found


def without_nulls(value: dict[str, Any], depth: int = DEPTH_LIMIT) -> dict[str, Any]:
    """A plain object without nulls, and with integers for whole floats (`256.0` is a valid token
    count). `depth`: accepted nesting."""
    return {name: _tidied(item, depth - 1) for name, item in value.items() if item is not None}


def _tidied(item: Any, depth: int) -> Any:
    if depth < 0:
        raise errors.InvalidPayload("The message is nested too deeply.")
    if isinstance(item, dict):
        return without_nulls(item, depth)
    if isinstance(item, list):
        return [_tidied(each, depth - 1) for each in item]
    if isinstance(item, float) and item.is_integer() and abs(item) < _EXACT_INTEGERS:
        return int(item)
    return item


def _explain(sentence: str, shape: Shape, given: Any) -> errors.BadInput:
    match = _AT.match(sentence)
    what, where = (match["what"], match["where"] or "") if match else (sentence, "")
    missing = _MISSING.match(what)
    if missing:
        return shape.absent(f"{where}.{missing['name']}" if where else missing["name"])
    if shape.is_text:
        # All values are text; they are shown below.
        what = what.removesuffix(", got `str`")
    plain = what.replace("`", "")
    plain = plain[:1].lower() + plain[1:]
    if re.fullmatch(r"expected (str|array|object) of length >= 1", plain):
        plain = "must not be empty"
    elif what.startswith("Expected") and ", got" not in what:
        plain += _got(given, where)
    if what.startswith("Invalid") and (accepted := _accepted(shape.struct, where)):
        plain = f"{plain}; accepted: {', '.join(accepted)}"
    return shape.failed(f"{where or 'message'}: {plain}"[:300], where)


def _got(value: Any, where: str) -> str:
    """Limits of the value at a path, as the end of a sentence; "" if unknown."""
    if "[...]" in where:  # one of the values of a map
        return ""
    try:
        for step in re.findall(r"[^.\[\]]+", where):
            value = value[int(step) if isinstance(value, list) else step]
    except (LookupError, ValueError, TypeError):
        return ""
    match value:
        case list() | dict():
            return f", got {len(value)} items"
        case str() if len(value) > 40:
            return f", got {len(value)} characters"
        case _:
            return f", got {value!r}"


def _accepted(struct: type[msgspec.Struct], where: str) -> list[str]:
    """The values of a closed choice at a path like `config.ls_mode` or `messages[0].role`."""
    kinds: list[inspect.Type] = [inspect.type_info(struct)]
    for step in where.replace("[", ".[").split("."):
        kinds = [inner for kind in kinds for inner in _into(kind, step)]
    return [str(value) for kind in kinds for value in getattr(kind, "values", ())]


def _into(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType(fields=fields):
            if step and step == kind.tag_field:
                yield inspect.LiteralType((kind.tag,))
            for each in fields:
                if each.encode_name == step:
                    yield from _plain(each.type)
        case inspect.CollectionType(item_type=item):
            yield from _plain(item)


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.Metadata(type=inner):
            yield from _plain(inner)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _plain(each)
        case _:
            yield kind


# ---- base64, PCM, ids ----------------------------------------------------------------------


def to_base64(data: bytes | bytearray | memoryview) -> str:
    """Standard alphabet, with padding."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str, *, field: str, limit_bytes: int | None = None) -> bytes:
    """Strict base64: only the standard alphabet; padding is optional.

    Raises:
        InvalidPayload: naming `field`.
        TooLarge: more than `limit_bytes` once decoded; checked before decoding.
    """
    size = len(text) * 3 // 4
    if limit_bytes is not None and size - 2 > limit_bytes:
        raise errors.TooLarge(field, size, limit_bytes)
    if isinstance(text, LongBase64):
        return _from_pieces(text, field)
    bare = text.rstrip("=") if text.endswith("=") else text
    if len(bare) % 4 == 1 or len(text) - len(bare) > 2:
        raise errors.InvalidPayload(f"{field} is not valid base64.", field=field)
    try:
        return binascii.a2b_base64(bare + "=" * (-len(bare) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        raise errors.InvalidPayload(f"{field} is not valid base64.", field=field) from None


def _from_pieces(text: LongBase64, field: str) -> bytes:
    data = bytearray()
    for piece in text.pieces():
        if len(data) % 3:
            # The previous piece ended with padding.
            raise errors.InvalidPayload(f"{field} is not valid base64.", field=field)
        data += from_base64(piece, field=field)
    return bytes(data)


def pcm_bytes(text: str, *, field: str) -> bytes:
    """Decode base64 of raw float32 samples; the length of the result is a multiple of 4.

    The caller that converts them to samples must check that they are finite.
    """
    data = from_base64(text, field=field)
    if len(data) % SAMPLE_BYTES:
        raise errors.InvalidPayload(
            f"{field} has {len(data)} bytes, which is not a whole number of float32 samples.",
            field=field,
        )
    return data


def file_bytes(text: str, *, field: str, limit_bytes: int | None = None) -> bytes:
    """Decode base64 of a file, which must not be empty; a `data:` URL prefix is removed."""
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    data = from_base64(text, field=field, limit_bytes=limit_bytes)
    if not data:
        raise errors.InvalidPayload(f"{field} is empty.", field=field)
    return data


def is_wav(data: bytes) -> bool:
    """True if reference audio is a WAV file rather than raw samples."""
    return len(data) >= 12 and data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"


def voice_bytes(text: str, *, field: str, limit_bytes: int | None = None) -> bytes:
    """Decode base64 of reference audio: a WAV file, or raw float32 samples at 16 kHz.

    `is_wav` distinguishes the two.
    """
    data = file_bytes(text, field=field, limit_bytes=limit_bytes)
    if not is_wav(data) and len(data) % SAMPLE_BYTES:
        raise errors.InvalidPayload(
            f"{field} is neither a WAV file nor a whole number of float32 samples.", field=field
        )
    return data


def is_session_id(text: str) -> bool:
    """1 to 64 ASCII letters, digits, `_` or `-`."""
    return _SESSION_ID.fullmatch(text) is not None


def check_session_id(text: str) -> str:
    """Returns the id if it is valid.

    Raises:
        BadSessionId: otherwise; ids are refused, never rewritten.
    """
    if not is_session_id(text):
        raise errors.BadSessionId
    return text
