"""Files that were damaged or made to do harm: a RecordingError or a shorter recording, never anything else."""

from __future__ import annotations

import io
import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpfprof.errors import RecordingError
from bpfprof.model.frames import FrameKind
from bpfprof.model.samples import NATIVE_DTYPE, NO_FILE
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.contents import Recording
from bpfprof.recording.format import CHUNK_MAGIC, MAGIC, Chunk, decode, encode
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import chunk_of, file_bytes, read, replace_chunk, small

MEMORY_LIMIT_BYTES = 16 << 20
DEEP = 200_000


def attempt(data: bytes) -> Recording | None:
    """What is read, and that a profile can be made of it; None when it is refused."""
    try:
        recording = read_recording(io.BytesIO(data))
        build_profile(recording, ProfileOptions(with_spans=True))
    except RecordingError as error:
        assert str(error)
        return None
    return recording


def sealed(payload: bytes) -> bytes:
    """A chunk whose checksum is right, whatever it holds."""
    payload += bytes(-len(payload) % 8)
    return struct.pack("<4sIQ", CHUNK_MAGIC, zlib.crc32(payload), len(payload)) + payload


def with_text(text: str, arrays: bytes = b"") -> bytes:
    """A chunk with this JSON."""
    raw = text.encode()
    head = struct.pack("<Q", len(raw)) + raw
    return sealed(head + bytes(-len(head) % 8) + arrays)


def test_a_flipped_byte_ends_the_recording_at_its_chunk() -> None:
    data = file_bytes(small().chunks())
    chance = random.Random(7)
    for _ in range(2500):
        damaged = bytearray(data)
        at = chance.randrange(len(data))
        damaged[at] ^= chance.randrange(1, 256)
        try:
            recording = read_recording(io.BytesIO(damaged))
        except RecordingError:
            continue
        assert recording.unfinished, f"byte {at} changed and nobody noticed"


@pytest.mark.second_tier
def test_flipped_bytes_under_a_right_checksum_never_crash() -> None:
    chunks = [encode(chunk) for chunk in small().chunks()]
    chance = random.Random(8)
    for _ in range(800):
        index = chance.randrange(len(chunks))
        payload = bytearray(chunks[index][16:])
        for _ in range(chance.choice([1, 1, 2, 5])):
            payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
        attempt(MAGIC + b"".join([*chunks[:index], sealed(bytes(payload)), *chunks[index + 1 :]]))


def test_frames_of_no_stack_in_which_a_device_is_waited_for() -> None:
    chunks = small().chunks()
    names, stacks = chunk_of(chunks, "names"), chunk_of(chunks, "stacks")
    names.fields["texts"] = ["cudaFree"] * len(names.fields["texts"])
    stacks.arrays["stacks"] = stacks.arrays["stacks"][:0]
    assert attempt(file_bytes(chunks)) is not None


def test_random_numbers_in_the_rows_never_crash() -> None:
    chance = np.random.default_rng(9)
    for _ in range(150):
        chunks = small().chunks()
        for chunk in chunks:
            for name, array in chunk.arrays.items():
                if array.dtype.names is None:
                    continue
                field = chance.choice(array.dtype.names)
                wild = array.copy()
                wild[field] = (
                    chance.integers(0, 256, wild[field].nbytes, np.uint8)
                    .view(wild[field].dtype.base)
                    .reshape(wild[field].shape)
                )
                chunk.arrays[name] = wild
        attempt(file_bytes(chunks))


def hostile_texts() -> dict[str, str]:
    """JSON of one chunk, each wrong in its own way."""
    rows = {"kind": "samples", "fields": {}}
    deep_list = "[" * DEEP + "]" * DEEP
    described: list[Any] = [
        ["rows", "|O", 1],
        ["rows", "O", 1],
        ["rows", "<U9", 1],
        ["rows", "|V8", 1],
        ["rows", "<M8[s]", 1],
        ["rows", "<f3", 1],
        ["rows", "<u8", 1 << 62],
        ["rows", "<u8", -1],
        ["rows", "<u8", -(1 << 70)],
        ["rows", "<u8", 1.5],
        ["rows", "<u8", "1"],
        ["rows", "<u8", None],
        ["rows", [["thread", "|O", []]], 1],
        ["rows", [["thread", "<u4", [1 << 40]]], 1],
        ["rows", [["thread", "<u4", [64, 64, 64]]], 1],
        ["rows", [["thread", "<u4", [-1]]], 1],
        ["rows", [["thread", "<u4", [0]]], 1],
        ["rows", [["thread", "<u4", []], ["thread", "<u4", []]], 1],
        ["rows", [["thread", "<u4"]], 1],
        ["rows", [], 1 << 60],
        ["rows", {}, 1],
        [["rows"], "<u8", 1],
        ["rows"],
        "rows",
        7,
    ]
    texts = {f"array {json.dumps(one)[:60]}": json.dumps({**rows, "arrays": [one]}) for one in described}
    texts |= {
        "deep list": deep_list,
        "deep fields": f'{{"kind":"samples","fields":{{"x":{deep_list}}},"arrays":[]}}',
        "deep dtype": f'{{"kind":"samples","fields":{{}},"arrays":[["rows",{deep_list},1]]}}',
        "not an object": "[1, 2, 3]",
        "nothing": "",
        "no kind": '{"fields":{},"arrays":[]}',
        "no arrays": '{"kind":"samples","fields":{}}',
        "fields a number": '{"kind":"samples","fields":7,"arrays":[]}',
        "long number": f'{{"kind":"samples","fields":{{"x":{"9" * 10_000}}},"arrays":[]}}',
        "half a surrogate": '{"kind":"samples","fields":{"rows":"\\ud800"},"arrays":[["rows","<u8",9]]}',
    }
    index: Any
    content: Any
    for kind in ("threads", "processes", "files"):
        for index in (-1, 5, 1 << 21, 1 << 31, 1 << 70, 1.5e300, float("inf"), float("nan"), "x", None, [], True):
            row = {"index": index, "process": 0, "tid": 1}
            texts[f"{kind} {index}"] = json.dumps({"kind": kind, "fields": {"rows": [row]}, "arrays": []})
        for content in (7, "text", [7], ["text"], [[]], [{}], {"index": 0}):
            texts[f"{kind} rows {content}"] = json.dumps({"kind": kind, "fields": {"rows": content}, "arrays": []})
        texts[f"{kind} without rows"] = json.dumps({"kind": kind, "fields": {}, "arrays": []})
    return texts


@pytest.mark.parametrize("name", hostile_texts())
def test_hostile_json_is_refused_in_little_memory(name: str) -> None:
    data = file_bytes(small().chunks()[:3]) + with_text(hostile_texts()[name], bytes(64))
    tracemalloc.start()
    try:
        recording = read_recording(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT_BYTES
    finally:
        tracemalloc.stop()
    assert recording.unfinished and (len(recording.processes), len(recording.threads)) == (2, 2)


WRONG_VALUES: list[Any] = [None, -1, 1 << 64, -(1 << 70), 1.5, float("inf"), "text", [], [1], {}, {"a": 1}, True, "7"]


@pytest.mark.parametrize("value", WRONG_VALUES, ids=str)
def test_a_field_of_the_wrong_type_never_crashes(value: Any) -> None:
    def try_with(change: Callable[[list[Chunk]], None]) -> None:
        chunks = small().chunks()
        change(chunks)
        attempt(file_bytes(chunks))

    chunks = small().chunks()
    for position in (0, -1):
        for name in chunks[position].fields:
            try_with(lambda made, at=position, key=name: made[at].fields.update({key: value}))  # type: ignore[misc]
    for kind in ("processes", "threads", "files"):
        for name in chunk_of(chunks, kind).fields["rows"][0]:
            try_with(lambda made, of=kind, key=name: chunk_of(made, of).fields["rows"][0].update({key: value}))  # type: ignore[misc]
    for column in range(5):
        try_with(lambda made, at=column: chunk_of(made, "codes").fields["rows"][0].__setitem__(at, value))  # type: ignore[misc]
    for kind, name in (("files", "rows"), ("names", "texts")):
        try_with(lambda made, of=kind, key=name: chunk_of(made, of).fields.update({key: value}))  # type: ignore[misc]
        try_with(lambda made, of=kind, key=name: chunk_of(made, of).fields[key].__setitem__(0, value))  # type: ignore[misc]


@pytest.mark.parametrize(
    "ends", [np.array([1 << 63, 1], np.uint64), np.array([-5, 2]), np.array([9.5, 1e300]), np.array([3], np.uint64)]
)
def test_wrong_ends_of_line_tables(ends: np.ndarray[Any, Any]) -> None:
    chunks = small().chunks()
    chunk_of(chunks, "codes").arrays["linetable_ends"] = ends
    attempt(file_bytes(chunks))


WILD = (0, 1, 5, 6, 99, 0x7FFF_FFFF, 0x8000_0000, NO_FILE)  # numbers from 1 on: 5 is the last address


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("has_natives", [True, False])
def test_native_frames_that_refer_to_what_is_not_there(value: int, has_natives: bool) -> None:
    """Files of addresses, frames of stacks, addresses and texts of names: what is known is shown, no more is read."""
    for kind, array, column in (
        ("natives", "rows", "file"),
        ("stacks", "native", "native"),
        ("names", "rows", "native"),
        ("names", "rows", "function"),
        ("names", "rows", "file"),
    ):
        chunks = small().chunks()
        if not has_natives:
            replace_chunk(chunks, Chunk("natives", {}, {"rows": np.zeros(0, NATIVE_DTYPE)}))
        if kind != "natives" or has_natives:
            chunk_of(chunks, kind).arrays[array][column] = value
        recording = attempt(file_bytes(chunks))
        assert recording is not None
        for source in (StackSource(recording), StackSource(recording, show_interpreter=True)):
            frames = source.frames(1, 0)
            assert sum(frame.kind == FrameKind.PYTHON for frame in frames) == 2
            assert len(frames) >= 4 and all(isinstance(frame.name, str) for frame in frames)


@pytest.mark.second_tier
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("scalar", ["<i1", "|u1", "<i2", "<i4", "<i8", "<u8", "<f4", "<f8"])
@pytest.mark.parametrize("value", [-1, -(1 << 31), 3, 200, 1 << 40, 1.5, float("inf"), float("nan")])
def test_texts_of_names_at_places_of_any_type(scalar: str, value: float) -> None:
    """A row that says a text is where none is: the recording ends before it, in whatever type it says so."""
    dtype = np.dtype(scalar)
    with np.errstate(all="ignore"):
        stored = np.array([value]).astype(dtype)
    for column in ("function", "file", "native", "line", "flags"):
        rows = np.zeros(1, [("native", "<u4"), ("function", "<u4"), ("file", "<u4"), ("line", "<u4"), ("flags", "u1")])
        changed = np.zeros(
            1, [(name, dtype if name == column else rows.dtype[name]) for name in rows.dtype.names or ()]
        )
        for name in rows.dtype.names or ():
            changed[name] = 1
        changed[column] = stored
        for texts in (["", "one"], [f"text {number}" for number in range(300)]):
            chunks = small().chunks()
            chunks.insert(-1, Chunk("names", {"texts": texts}, {"rows": changed}))
            recording = attempt(file_bytes(chunks))
            assert recording is not None
            if (
                column in ("function", "file")
                and dtype.kind != "f"
                and not 0 <= int(stored[0]) % (1 << 32) < len(texts)
            ):
                assert recording.unfinished, (column, len(texts))
            places = recording.names[["function", "file"]].tolist()
            assert all(0 <= place < len(recording.texts) for pair in places for place in pair)


def test_a_code_object_of_a_process_that_is_not_there() -> None:
    made = small()
    made.codes[0][0] = 77
    assert attempt(file_bytes(made.chunks())) is None or "missing" in made.recording().unfinished


def test_a_thread_of_a_process_that_is_not_there_is_refused() -> None:
    chunks = small().chunks()
    del chunks[1]
    with pytest.raises(RecordingError, match="process"):
        read(chunks)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 8, (1 << 28) + 8, 12])
def test_a_chunk_that_claims_to_be_too_long_is_not_read(length: int) -> None:
    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and size <= 16, "nothing is asked for beyond the header"
            return super().read(size)

    with pytest.raises(RecordingError, match="damaged"):
        decode(File(struct.pack("<4sIQ", CHUNK_MAGIC, 0, length) + bytes(64)))


@pytest.mark.parametrize("text_bytes", [1, 1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_text_that_claims_to_be_longer_than_its_chunk(text_bytes: int) -> None:
    with pytest.raises(RecordingError, match="damaged"):
        decode(io.BytesIO(sealed(struct.pack("<Q", text_bytes) + b'{"kind": "a"}')))


@pytest.mark.parametrize(
    "wrong", [{"event": 1}, {"thread": 9}, {"stack": 99}, {"count": 1 << 63}, {"time_ns": 1 << 63}]
)
def test_events_that_refer_to_nothing_are_left_out(wrong: dict[str, int]) -> None:
    made = small()
    for name, value in wrong.items():
        made.events[0][name] = value
    recording = made.recording()
    assert not len(recording.events) and "1 events" in recording.unfinished
