"""One chunk of a recording file to bytes and back. docs/recording-format.md draws the layout.

A file is MAGIC, then chunks. A chunk is a header (CHUNK_MAGIC, CRC-32 of the payload, its length), then the payload:
the length of a JSON text, the JSON (`kind`, `fields`, and `arrays`: [name, dtype, count] each), then the arrays' bytes,
each part padded to 8 bytes. Reading trusts nothing: lengths are bounded, dtypes limited to plain numbers.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import field
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.errors import RecordingError

MAGIC = b"BPFPROF\x02"  # the last byte is the version of the format
CHUNK_MAGIC = b"CHNK"
MAX_CHUNK_BYTES = 1 << 28
MAX_TEXT_BYTES = 1 << 25  # of the JSON of a chunk: parsed it takes some twenty times as much
# A list or a dict takes so many bytes at least, however little there is in it. Those of a recording take at most seven
# times as much as their text.
_LIST_BYTES, _DICT_BYTES, _NESTED_BYTES, _NESTED_TIMES = 96, 210, 128 << 20, 8
_HEADER = struct.Struct("<4sIQ")
_SCALAR = re.compile(r"[<|][uif][1248]")


@dataclass(frozen=True)
class Chunk:
    """A named group of JSON fields and arrays."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    size: int = field(default=0, compare=False)  # of its payload in the file


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def encode(chunk: Chunk) -> bytes:
    """The bytes of a chunk, header included."""
    arrays = [[name, _describe(array.dtype), len(array)] for name, array in chunk.arrays.items()]
    text = json.dumps({"kind": chunk.kind, "fields": chunk.fields, "arrays": arrays}, separators=(",", ":")).encode()
    payload = b"".join(
        [_padded(struct.pack("<Q", len(text)) + text), *(_padded(array.tobytes()) for array in chunk.arrays.values())]
    )
    return _HEADER.pack(CHUNK_MAGIC, zlib.crc32(payload), len(payload)) + payload


def decode(file: BinaryIO) -> Chunk | None:
    """The next chunk; None at the end of the file. Raises RecordingError where the rest cannot be read."""
    header = file.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise RecordingError("the recording ends inside a chunk")
    magic, checksum, length = _HEADER.unpack(header)
    if magic != CHUNK_MAGIC or length > MAX_CHUNK_BYTES or length % 8:
        raise RecordingError("the recording is damaged: no chunk where one should begin")
    payload = file.read(length)
    if len(payload) < length:
        raise RecordingError("the recording ends inside a chunk")
    if zlib.crc32(payload) != checksum:
        raise RecordingError("the recording is damaged: a chunk's checksum is wrong")
    try:
        return _decode_payload(payload)
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise RecordingError(f"the recording is damaged: {error}") from error


def _decode_payload(payload: bytes) -> Chunk:
    (text_bytes,) = struct.unpack_from("<Q", payload, 0)
    if text_bytes > MAX_TEXT_BYTES:
        raise ValueError("a chunk has more text than this version reads")
    text = payload[8 : 8 + text_bytes]
    nested_bytes = _LIST_BYTES * text.count(b"[") + _DICT_BYTES * text.count(b"{")
    if nested_bytes > _NESTED_BYTES + _NESTED_TIMES * text_bytes:
        raise ValueError("a chunk has more lists than this version reads")
    content = json.loads(text)
    position = (8 + text_bytes + 7) & ~7
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, description, count in content["arrays"]:
        dtype = _dtype(description)
        if not 0 <= count <= (len(payload) - position) // dtype.itemsize:
            raise ValueError(f"array {str(name)[:20]!r} is longer than its chunk")
        arrays[name] = np.frombuffer(payload, dtype, count, position)
        position += (count * dtype.itemsize + 7) & ~7
    return Chunk(str(content["kind"]), dict(content["fields"]), arrays, len(payload))


def _describe(dtype: np.dtype[Any]) -> Any:
    if dtype.names is None:
        return dtype.str
    return [[name, dtype[name].base.str, list(dtype[name].shape)] for name in dtype.names]


def _dtype(description: Any) -> np.dtype[Any]:
    if isinstance(description, str):
        return np.dtype(_plain(description))
    fields = []
    for name, scalar, shape in description:
        if len(shape) > 1 or any(not 0 < n <= 64 for n in shape):
            raise ValueError(f"field {str(name)[:20]!r} has a shape this version does not read")
        fields.append((str(name), _plain(scalar), tuple(shape)))
    if not fields:
        raise ValueError("rows without a column")
    return _of_fields(tuple(fields))


@lru_cache(256)  # each chunk of a kind has the same
def _of_fields(fields: tuple[tuple[str, str, tuple[int, ...]], ...]) -> np.dtype[Any]:
    return np.dtype([*fields])


@lru_cache(256)
def _plain(text: str) -> str:
    if not _SCALAR.fullmatch(text):
        raise ValueError(f"type {text[:20]!r} is not a plain number")
    return text
