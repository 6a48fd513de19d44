"""Reading GGUF: every value equals what the block formats define, and a damaged file is refused with the place."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.engines.local.convert import undo_rope_permutation
from tokentrace.engines.local.gguf import BLOCKS, F16, F32, Q4_1, Q8_0, GgufError, GgufFile, dequantise


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(tensors: list[tuple[str, tuple[int, ...], int, bytes]], pairs: bytes = b"", count: int = 0) -> bytes:
    """A GGUF version 3 file as the specification lays it out."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + pairs
    offset, data = 0, b""
    for name, shape, kind, raw in tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        data += raw + b"\0" * (-len(raw) % 32)
        offset = len(data)
    return head + b"\0" * (-len(head) % 32) + data


def half(raw: bytes) -> np.float32:
    return np.float32(struct.unpack("<e", raw)[0])


def slow(raw: bytes, kind: int) -> list[np.float32]:
    """The block formats, one value at a time, in float32 steps."""
    if kind == F32:
        return [np.float32(v) for v in struct.unpack(f"<{len(raw) // 4}f", raw)]
    if kind == F16:
        return [np.float32(v) for v in struct.unpack(f"<{len(raw) // 2}e", raw)]
    values: list[np.float32] = []
    size = BLOCKS[kind][1]
    for at in range(0, len(raw), size):
        block = raw[at : at + size]
        if kind == Q8_0:
            values += [np.float32(q) * half(block[:2]) for q in struct.unpack("<32b", block[2:])]
        else:
            scale, minimum = half(block[:2]), half(block[2:4])
            nibbles = [b & 15 for b in block[4:]] + [b >> 4 for b in block[4:]]
            values += [np.float32(np.float32(q) * scale) + minimum for q in nibbles]
    return values


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from([F32, F16, Q4_1, Q8_0]), data=st.data())
def test_every_format_gives_the_values_its_definition_gives(kind: int, data: st.DataObject) -> None:
    size = BLOCKS[kind][1]
    raw = data.draw(st.binary(min_size=size, max_size=size * 4).map(lambda b: b[: len(b) // size * size]))
    with np.errstate(all="ignore"):
        got = dequantise(np.frombuffer(raw, np.uint8), kind)
        expected = np.array(slow(raw, kind), np.float32)
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all()


def test_shapes_and_metadata_come_out_as_written() -> None:
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += text("some.list") + struct.pack("<IIQ", 9, 4, 3) + struct.pack("<3I", 7, 8, 9)
    pairs += text("some.words") + struct.pack("<IIQ", 9, 8, 2) + text("à") + text("")
    values = np.arange(6, dtype=np.float32)
    file = GgufFile(gguf([("a", (2, 3), F32, values.tobytes()), ("b", (1,), F16, b"\0<")], pairs, 3))
    assert file.metadata == {"general.architecture": "llama", "some.list": [7, 8, 9], "some.words": ["à", ""]}
    assert file.array(file.tensors[0]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.array(file.tensors[1]).tolist() == [1.0]


def test_rope_rows_are_put_back_as_they_were_before_llama_cpp_moved_them() -> None:
    heads, head_dim, width = 3, 8, 5
    original = np.random.default_rng(1).random((heads * head_dim, width), np.float32)
    stored = np.empty_like(original)
    for head in range(heads):  # llama.cpp pairs row i with row i + head_dim/2 of the same head
        for i in range(head_dim // 2):
            stored[head * head_dim + 2 * i] = original[head * head_dim + i]
            stored[head * head_dim + 2 * i + 1] = original[head * head_dim + head_dim // 2 + i]
    assert (undo_rope_permutation(stored, heads) == original).all()


@pytest.mark.parametrize(
    ("data", "phrase"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\3\4 this is a zip", "does not begin with GGUF"),
        (b"GGUF", "header is damaged"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "header is damaged"),
        (gguf([("t", (32,), 2, b"\0" * 18)]), "GGML type 2"),
        (gguf([("t", (64,), F32, b"\0" * 256)])[:-64], "ends inside tensor t"),
    ],
)
def test_a_damaged_file_is_refused_and_the_place_is_named(data: bytes, phrase: str) -> None:
    with pytest.raises(GgufError, match=phrase):
        GgufFile(data)


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 400), at=st.integers(0, 200), byte=st.integers(0, 255))
def test_no_damage_raises_anything_else(cut: int, at: int, byte: int) -> None:
    pairs = text("k") + struct.pack("<II", 4, 5)
    whole = bytearray(gguf([("t", (4, 8), F32, b"\1" * 128)], pairs, 1))
    whole[min(at, len(whole) - 1)] = byte
    try:
        file = GgufFile(bytes(whole[: len(whole) - cut] if cut < len(whole) else b""))
        for tensor in file.tensors:
            file.array(tensor)
    except GgufError:
        pass
