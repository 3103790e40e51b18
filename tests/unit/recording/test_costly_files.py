"""Recordings made so that reading them costs much: refused, or read in time and memory in proportion to their size."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from bpfprof.model.samples import TOTAL_DTYPE
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.contents import Recording
from bpfprof.recording.format import CHUNK_MAGIC, MAX_TEXT_BYTES, Chunk, encode
from bpfprof.recording.reader import read_recording
from bpfprof.render.labels import short_file_names
from tests.tiers import first_in_gate
from tests.unit.recording.hand_made import MS, START_NS, HandMade, Story, chunk_of, file_bytes, read, small

LIMIT_S = 5  # each takes well under a second; a quadratic one took minutes
# What reading may take: so many bytes, and so many times the size of the file.
LIMIT_BYTES, LIMIT_TIMES = 300 << 20, 20


def with_chunk(chunk: Chunk) -> bytes:
    chunks = small().chunks()
    return file_bytes([*chunks[:-1], chunk])


@pytest.mark.parametrize(
    "dtype", [np.dtype([("unknown", "u1")]), np.dtype("u1")], ids=["an unknown column", "plain numbers"]
)
@pytest.mark.parametrize("kind", ["waits", "samples", "totals", "short_waits", "natives", "events"])
def test_rows_that_lack_their_first_column_are_refused(kind: str, dtype: np.dtype) -> None:
    data = with_chunk(Chunk(kind, {}, {"rows": np.zeros(1 << 20, dtype)}))
    tracemalloc.start()
    recording = read_recording(io.BytesIO(data))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "rows without the column" in recording.unfinished
    assert most < LIMIT_TIMES * len(data)


@pytest.mark.parametrize("scalar", ["u1", "<u8"])
@pytest.mark.parametrize("kind", ["waits", "totals", "samples", "task_waits", "names"])
def test_rows_that_are_much_narrower_than_known_ones_cost_little(kind: str, scalar: str) -> None:
    """They have their first column, of a byte or as it is written, and nothing else."""
    first = (getattr(Recording(), kind).dtype.names or ())[0]
    rows = np.zeros((4 << 20) // np.dtype(scalar).itemsize, [(first, scalar)])
    data = with_chunk(Chunk(kind, {"texts": [""]}, {"rows": rows}))
    tracemalloc.start()
    recording = read_recording(io.BytesIO(data))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < LIMIT_TIMES * len(data)
    assert "rows without most of their columns" in recording.unfinished or scalar == "<u8"


def test_a_few_narrow_rows_are_read() -> None:
    """Those of an older file, or of another program; many of them are refused."""
    few, many = (np.zeros(count, [("time_ns", "<u8")]) for count in (1000, 1 << 20))
    chunks = small().chunks()
    assert not read([*chunks[:-1], Chunk("samples", {}, {"rows": few}), chunks[-1]]).unfinished
    recording = read([*chunks[:-1], Chunk("samples", {}, {"rows": many}), chunks[-1]])
    assert "rows without most of their columns" in recording.unfinished


def test_rows_with_texts_are_narrow_together() -> None:
    """Each chunk of them is few."""
    chunks = small().chunks()
    narrow = Chunk("names", {"texts": [""]}, {"rows": np.zeros(1 << 16, [("native", "<u8")])})
    recording = read([*chunks[:-1], *[narrow] * 12, chunks[-1]])
    assert "rows without most of their columns" in recording.unfinished


def rows_of(kind: str, count: int, **values: object) -> list[Chunk]:
    chunks = small().chunks()
    chunk_of(chunks, kind).fields["rows"] += [{"index": number, **values} for number in range(2, count)]
    return chunks


def test_processes_of_few_bytes_each_are_refused_before_they_are_kept() -> None:
    recording = read(rows_of("processes", 200_000))
    assert recording.unfinished == "the recording is damaged: its processes are too many for so few bytes"
    assert not recording.processes


@pytest.mark.parametrize("has_end", [True, False])
def test_threads_of_few_bytes_each_are_left_out(has_end: bool) -> None:
    chunks = rows_of("threads", 60_000)
    recording = read(chunks if has_end else chunks[:-1])
    assert 30_000 <= len(recording.threads) < 40_000
    assert "threads are too many for so few bytes" in recording.unfinished or not has_end


def test_many_short_threads_are_all_read() -> None:
    """As bpfprof writes them, with their totals."""
    made = HandMade()
    made.process()
    for number in range(60_000):
        made.thread(100 + number)
    made.end = {"end_ns": START_NS + MS}
    chunks = made.chunks()
    totals = np.zeros(60_000, TOTAL_DTYPE)
    totals["thread"] = np.arange(60_000)
    chunk_of(chunks, "totals").arrays["rows"] = totals
    recording = read(chunks)
    assert len(recording.threads) == 60_000 and not recording.unfinished


def test_rows_without_columns_are_refused() -> None:
    data = encode(Chunk("waits", {}, {"rows": np.zeros(9, [("time_ns", "<u8")])}))
    # The checksum is over what is changed here.
    changed = data[16:].replace(b'[["time_ns","<u8",[]]]', b"[]                    ")
    header = struct.pack("<4sIQ", CHUNK_MAGIC, zlib.crc32(changed), len(changed))
    recording = read_recording(io.BytesIO(file_bytes(small().chunks()[:-1]) + header + changed))
    assert "rows without a column" in recording.unfinished


def test_line_tables_that_overlap_are_refused() -> None:
    chunks = small().chunks()
    codes = chunk_of(chunks, "codes")
    codes.arrays["linetable_ends"] = np.array([4, 0], np.uint64)
    assert "line tables that overlap" in read(chunks).unfinished


def test_a_chunk_of_text_has_a_limit() -> None:
    data = with_chunk(Chunk("start", {"unknown": "x" * MAX_TEXT_BYTES}))
    assert "more text than this version reads" in read_recording(io.BytesIO(data)).unfinished


@pytest.mark.parametrize(
    "text",
    [
        b'[{"":[]},{}]',
        *first_in_gate(0, [b"[]", b'{"":{}}', b"[" * 800 + b"]" * 800, b'{"":' * 400 + b"0" + b"}" * 400]),
    ],
    ids=["both", "lists", "dicts", "nested lists", "nested dicts"],
)
def test_text_of_very_many_lists_is_refused_before_it_is_parsed(text: bytes) -> None:
    """Of two bytes each: parsed they take fifty times as much, and more than a reader may."""
    rows = b",".join([text] * ((MAX_TEXT_BYTES - 1000) // (len(text) + 1)))
    content = b'{"kind":"unknown","fields":{"rows":[' + rows + b']},"arrays":[]}'
    payload = struct.pack("<Q", len(content)) + content
    payload += bytes(-len(payload) % 8)
    data = (
        file_bytes(small().chunks()[:-1])
        + struct.pack("<4sIQ", CHUNK_MAGIC, zlib.crc32(payload), len(payload))
        + payload
    )
    begin_bytes = tracemalloc.start() or tracemalloc.get_traced_memory()[0]
    recording = read_recording(io.BytesIO(data))
    most = tracemalloc.get_traced_memory()[1] - begin_bytes
    tracemalloc.stop()
    assert "more lists than this version reads" in recording.unfinished
    assert most < 4 * len(data)


def test_as_many_rows_as_a_chunk_takes_are_read() -> None:
    """The shortest that there are: of code objects whose names have a letter each."""
    rows = [[0, "a", "b", 1, ""]] * 1_000_000
    assert not read([*small().chunks()[:-1], Chunk("unknown", {"rows": rows}), small().chunks()[-1]]).unfinished


def test_messages_do_not_act_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.bpfprof"
    begin = file_bytes([])
    path.write_bytes(
        begin + encode(Chunk("start", {}, {"\x1b]0;PWNED\x07": np.zeros(3, "u1")})).replace(b"3]]", b"9]]")
    )
    command = [sys.executable, "-m", "bpfprof", "report", str(path)]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 5 and done.stderr
    assert b"\x1b" not in done.stderr and b"\x07" not in done.stderr
    done = subprocess.run([*command[:-1], "/nowhere/\x1b[2J"], capture_output=True, check=False)
    assert done.returncode != 0 and b"\x1b" not in done.stderr


def test_times_that_are_too_large_together_are_refused() -> None:
    made = HandMade()
    made.process()
    story = Story.begin(made)
    for _ in range(50):
        story.run(MS).block(MS)
    story.run(MS).total()
    for wait in made.waits:
        wait["blocked_ns"] = wait["stolen_ns"] = (1 << 62) - 1
    made.end = {"end_ns": story.now_ns}
    recording = made.recording()
    assert "waits are damaged" in recording.unfinished
    assert build_profile(recording, ProfileOptions(with_spans=True)).threads


def sums_of(count: int, gaps: int) -> Recording:
    """One thread with so many kinds of short waits in so many gaps between other waits."""
    made = HandMade()
    made.process()
    story = Story.begin(made)
    for number in range(count):
        story.run(MS).block_short(MS // 10, syscall=number % 30_000)
        if number % (count // gaps) == 0:
            story.run(MS).block(MS)
    story.run(MS).total()
    made.end = {"end_ns": story.now_ns}
    return made.recording()


@pytest.mark.second_tier
def test_many_kinds_of_short_waits() -> None:
    recording = sums_of(8_000, 2_000)
    begin_s = time.process_time()
    tracemalloc.start()
    profile = build_profile(recording)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < LIMIT_BYTES and time.process_time() - begin_s < 4 * LIMIT_S  # tracing makes it slower
    (thread,) = profile.threads
    assert thread.accounted_ns == thread.wall_ns


@pytest.mark.second_tier
@pytest.mark.parametrize(
    "paths",
    [
        [letter + "/x" * 100_000 for letter in "AB"],
        [f"{chr(0x4E00 + number)}" + "/x" * 2_000 for number in range(900)],
        [f"/a/{number}/b.py" for number in range(50_000)],
    ],
    ids=["two long names", "900 long names", "many names"],
)
def test_names_of_files_are_shortened_in_time(paths: list[str]) -> None:
    begin_s = time.process_time()
    short = short_file_names(paths)
    assert time.process_time() - begin_s < LIMIT_S
    assert len(set(short.values())) == len(paths) and all(path.endswith(name) for path, name in short.items())


@pytest.mark.second_tier
def test_threads_without_rows() -> None:
    made = HandMade()
    made.process()
    for number in range(20_000):
        made.thread(100 + number)
    made.end = {"end_ns": START_NS + MS}
    recording = made.recording()
    begin_s = time.process_time()
    assert len(build_profile(recording).threads) == 20_000
    assert time.process_time() - begin_s < LIMIT_S
