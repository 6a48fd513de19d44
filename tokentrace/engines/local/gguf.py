"""Reads a GGUF file: its metadata, and its tensors as float32 arrays.

The layout is that of the GGUF specification, version 2 and 3 (ggml project, docs/gguf.md): a header, key-value pairs,
tensor descriptions, then the tensors themselves from the next multiple of `general.alignment`. Block formats as in
ggml's ggml-quants: a Q4_1 block is 20 bytes for 32 values (half scale d, half minimum m, 16 bytes of nibbles:
value = d * nibble + m, low nibbles first), a Q8_0 block is 34 bytes for 32 values (half scale, 32 signed bytes).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
#: GGML type -> (values in a block, bytes of a block)
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q8_0: (32, 34)}
_NAMES = {F32: "F32", F16: "F16", Q4_1: "Q4_1", Q8_0: "Q8_0"}

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Float32 = npt.NDArray[np.float32]


class GgufError(ValueError):
    """The bytes are not a GGUF file that can be read here; the message says which part."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's description. `shape` is outermost first, as in numpy; `offset` counts from the data's start."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def values(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def size_bytes(self) -> int:
        per_block, block_bytes = BLOCKS[self.kind]
        return self.values // per_block * block_bytes


class GgufFile:
    """A GGUF file held in memory (or mapped): `metadata` and `tensors` are read at once, values on demand.

    Raises GgufError when the bytes are no GGUF, end too early, or hold a tensor format unknown here.
    """

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)
        self._position = 0
        if bytes(self._data[:4]) != b"GGUF":
            raise GgufError("it does not begin with GGUF")
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, MemoryError, OverflowError, RecursionError) as error:
            raise GgufError(f"its header is damaged near byte {self._position}: {error}") from error
        for tensor in self.tensors:
            if tensor.kind not in BLOCKS:
                known = ", ".join(_NAMES.values())
                raise GgufError(f"tensor {tensor.name} has GGML type {tensor.kind}; known here are {known}")
            if self._base + tensor.offset + tensor.size_bytes > len(self._data):
                raise GgufError(f"it ends inside tensor {tensor.name}")

    def _read_header(self) -> None:
        version, tensor_count, pair_count = self._unpack("<IQQ", at=4)
        if version not in (2, 3):
            raise GgufError(f"it has GGUF version {version}; 2 and 3 are known here")
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            (kind,) = self._unpack("<I")
            self.metadata[key] = self._value(kind)
        self.tensors: list[Tensor] = []
        for _ in range(tensor_count):
            name = self._string()
            (dimensions,) = self._unpack("<I")
            sizes = self._unpack(f"<{dimensions}Q")
            kind, offset = self._unpack("<IQ")
            self.tensors.append(Tensor(name, tuple(reversed(sizes)), kind, offset))
        alignment = int(self.metadata.get("general.alignment", 32))
        self._base = -(-self._position // alignment) * alignment

    def _unpack(self, form: str, at: int | None = None) -> tuple[Any, ...]:
        start = self._position if at is None else at
        values = struct.unpack_from(form, self._data, start)
        self._position = start + struct.calcsize(form)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        end = self._position + length
        if end > len(self._data):
            raise GgufError(f"its header is damaged near byte {self._position}: a text of {length} bytes")
        text = bytes(self._data[self._position : end]).decode()
        self._position = end
        return text

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._unpack("<" + _SCALARS[kind])[0]
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item_kind, count = self._unpack("<IQ")
            if item_kind in _SCALARS:
                return list(self._unpack(f"<{count}{_SCALARS[item_kind]}"))
            return [self._value(item_kind) for _ in range(count)]
        raise GgufError(f"its header is damaged near byte {self._position}: value type {kind}")

    def array(self, tensor: Tensor) -> Float32:
        """The tensor's values as float32 in its shape, exactly as the block format defines them."""
        raw = np.frombuffer(self._data, np.uint8, tensor.size_bytes, self._base + tensor.offset)
        return dequantise(raw, tensor.kind).reshape(tensor.shape)


def dequantise(raw: npt.NDArray[np.uint8], kind: int) -> Float32:
    """Flat float32 values of raw blocks. Each step is a float32 operation, so that the result equals ggml's own."""
    if kind == F32:
        return raw.view(np.float32)
    if kind == F16:
        return raw.view(np.float16).astype(np.float32)
    _, block_bytes = BLOCKS[kind]
    blocks = raw.reshape(-1, block_bytes)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    if kind == Q8_0:
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = blocks[:, 4:]
    values = np.empty((blocks.shape[0], 32), np.float32)
    values[:, :16] = nibbles & 15
    values[:, 16:] = nibbles >> 4
    values *= scale
    values += minimum
    return values.reshape(-1)
