"""Tiny ONNX networks, written byte by byte, so that tests do not need a package for it.

They have the interface of the voice networks: inputs, outputs and a few nodes. The format is
protocol buffers; field numbers are those of `onnx.proto3`.
"""

from collections.abc import Sequence
from pathlib import Path

FLOAT, INT32, INT64 = 1, 6, 7


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    sizes = b"".join(
        _bytes(1, _number(1, size) if isinstance(size, int) else _bytes(2, size)) for size in shape
    )
    tensor = _number(1, kind) + _bytes(2, sizes)
    return _bytes(1, name) + _bytes(2, _bytes(1, tensor))


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    out = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, kind)
    for name, value in attributes.items():
        if isinstance(value, int):
            body = _bytes(1, name) + _number(3, value) + _number(20, 2)
        else:
            body = _bytes(1, name) + b"".join(_number(8, v) for v in value) + _number(20, 7)
        out += _bytes(5, body)
    return out


def _constant(name: str, values: Sequence[int]) -> bytes:
    data = b"".join(_number(7, value) for value in values)
    return _number(1, len(values)) + _number(2, INT64) + data + _bytes(8, name)


def _model(
    path: Path,
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    output: bytes,
    constants: Sequence[bytes] = (),
) -> None:
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, "tiny")
    graph += b"".join(_bytes(5, constant) for constant in constants)
    graph += b"".join(_bytes(11, value) for value in inputs) + _bytes(12, output)
    model = _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))
    path.write_bytes(model)


def write_tokenizer(path: Path) -> None:
    """Network from mel (1, 128, T) and its length to ceil(T / 4) tokens: the integer part of a
    hundred times the absolute mean over the bins of every fourth frame."""
    nodes = [
        _node("ReduceMean", ["feats"], "mean", axes=[1], keepdims=0),
        _node("Slice", ["mean", "zero", "end", "one", "four"], "every"),
        _node("Abs", ["every"], "positive"),
        _node("Cast", ["hundred"], "factor", to=FLOAT),
        _node("Mul", ["positive", "factor"], "scaled"),
        _node("Cast", ["feats_length"], "length", to=FLOAT),
        _node("Cast", ["zero"], "nothing", to=FLOAT),
        _node("Mul", ["length", "nothing"], "unused"),
        _node("Add", ["scaled", "unused"], "sum"),
        _node("Cast", ["sum"], "indices", to=INT64),
    ]
    constants = [
        _constant("zero", [0]),
        _constant("end", [2**31]),
        _constant("one", [1]),
        _constant("four", [4]),
        _constant("hundred", [100]),
    ]
    inputs = [_value("feats", FLOAT, [1, 128, "T"]), _value("feats_length", INT32, [1])]
    _model(path, nodes, inputs, _value("indices", INT64, [1, "n"]), constants)


def write_speaker(path: Path, width: int = 192) -> None:
    """Network from a filter bank (1, T, 80) to a vector: its maxima over time, repeated and cut to
    `width`."""
    nodes = [
        _node("ReduceMax", ["bank"], "most", axes=[1], keepdims=0),
        _node("Concat", ["most", "most", "most"], "wide", axis=1),
        _node("Slice", ["wide", "zero", "width", "one"], "embedding"),
    ]
    constants = [_constant("zero", [0]), _constant("width", [width]), _constant("one", [1])]
    inputs = [_value("bank", FLOAT, [1, "T", 80])]
    _model(path, nodes, inputs, _value("embedding", FLOAT, [1, width]), constants)
