"""What is written is read back; a file cut anywhere holds all chunks before the cut."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpfprof.errors import RecordingError
from bpfprof.model.samples import (
    CALL_DTYPE,
    MARK_DTYPE,
    NAME_DTYPE,
    NAME_INLINED,
    NATIVE_EXACT,
    NO_FILE,
    SAMPLE_DTYPE,
    STACK_DTYPE,
    TOTAL_DTYPE,
    WAIT_DTYPE,
)
from bpfprof.recording.contents import Recording
from bpfprof.recording.format import MAGIC, Chunk, decode, encode
from bpfprof.recording.reader import read_recording
from bpfprof.recording.tables import RecordedProcess, RecordedThread
from bpfprof.recording.writer import RecordingWriter
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import array, chunk_of, file_bytes, read, replace_chunk, row, small

SECTIONS = ("processes", "threads", "codes", "files", "natives", "stacks", "samples", "waits", "totals", "names", "end")


def test_everything_comes_back() -> None:
    made = small()
    recording = made.recording()
    assert not recording.unfinished
    assert recording.start["rate_hz"] == 100 and recording.end["lost"] == {"event lost, buffer full": 3}
    assert [(process.pid, process.name) for process in recording.processes] == [(100, "python"), (101, "wörker 函数")]
    assert recording.processes[0].python == (3, 11) and recording.processes[0].gil == (0x7F00, 96)
    assert recording.processes[1].python is None and recording.processes[1].gil is None
    assert [(thread.tid, thread.process) for thread in recording.threads] == [(100, 0), (101, 1)]
    assert [(code.qualname, code.linetable) for code in recording.codes] == [
        ("Worker.run", b"\x80\x00\xd8\x04"),
        ("", b""),
    ]
    for name in ("natives", "native_frames", "names", "stacks", "samples", "events", "waits", "totals"):
        rows = getattr(recording, name)
        assert rows.tobytes() == array(getattr(made, name), rows.dtype).tobytes(), name
    assert recording.python_frames.tolist() == [(1, 4, 0), (1, -2, 1), (2, 0, 0)]
    assert [(file.kind, file.path) for file in recording.files] == [
        ("kernel", "[kernel]"),
        ("elf", "/usr/bin/python3.11"),
        ("elf", "/a/libk.so"),
    ]
    assert recording.natives.tolist()[::3] == [(0x1F40, 2, NATIVE_EXACT), (0x7F00_0000_1000, NO_FILE, 0)]
    texts = [(recording.texts[name["function"]], recording.texts[name["file"]]) for name in recording.names]
    assert texts[:2] == [("dot", "/src/dot.h"), ("kernel::run()", "/src/run.cc")]
    assert recording.names["flags"][0] == NAME_INLINED


def test_chunks_of_every_shape_come_back() -> None:
    arrays: dict[str, Any] = {
        "bytes": np.arange(13, dtype=np.uint8),
        "nothing": np.zeros(0, np.float64),
        "floats": np.array([1.5, -2.5]),
        "rows": np.zeros(3, WAIT_DTYPE),
    }
    chunk = Chunk("other", {"text": "größe\n\x00", "none": None, "nested": [{"a": [1, 2.5, True]}]}, arrays)
    data = encode(chunk)
    assert len(data) % 8 == 0, "chunks stay aligned"
    back = decode(io.BytesIO(data))
    assert back is not None and (back.kind, back.fields) == (chunk.kind, chunk.fields)
    assert list(back.arrays) == list(arrays)
    for name, content in arrays.items():
        assert back.arrays[name].dtype == content.dtype and back.arrays[name].tobytes() == content.tobytes(), name


def test_rows_in_many_chunks_are_joined() -> None:
    made = small()
    chunks = made.chunks()
    end = chunks.pop()
    recording = read([*chunks, *(chunk_of(chunks, kind) for kind in ("samples", "stacks", "waits", "natives")), end])
    assert len(recording.samples) == 2 * len(made.samples)
    assert len(recording.natives) == 2 * len(made.natives)
    assert len(recording.native_frames) == 2 * len(made.native_frames)
    assert len(recording.waits) == 2 * len(made.waits)
    assert len(recording.stacks) == 2 * len(made.stacks)
    assert not recording.unfinished


def test_each_chunk_of_names_has_its_own_texts() -> None:
    """Names come from time to time, and the places in them are of the chunk."""
    made = small()
    chunks = made.chunks()
    later = [row(NAME_DTYPE, native=1, function=1, line=3), row(NAME_DTYPE, native=4, function=0, file=2)]
    chunks.insert(-1, Chunk("names", {"texts": ["", "late", "/b.c"]}, {"rows": array(later, NAME_DTYPE)}))
    recording = read(chunks)
    assert not recording.unfinished
    named = [
        (name["native"], recording.texts[name["function"]], recording.texts[name["file"]]) for name in recording.names
    ]
    assert named[-2:] == [(1, "late", ""), (4, "", "/b.c")]
    assert named[0] == (2, "dot", "/src/dot.h")


def test_names_may_lack_columns_or_have_them_of_other_sizes() -> None:
    """An older file, or one that another program wrote: what is there counts, the rest is 0."""
    chunks = small().chunks()
    rows = np.array([(2, 1, 7)], [("native", "<u8"), ("function", "u1"), ("extra", "<f4")])
    many = Chunk("names", {"texts": ["", *(f"function {number}" for number in range(300))]}, {"rows": rows})
    replace_chunk(chunks, many)
    chunks.insert(-1, Chunk("names", {"texts": ["", "again"]}, {"rows": rows}))
    recording = read(chunks)
    assert not recording.unfinished
    assert [recording.texts[place] for place in recording.names["function"]] == ["function 0", "again"]
    assert [recording.texts[place] for place in recording.names["file"]] == ["", ""]


def test_marks_of_all_chunks_share_their_names() -> None:
    chunks = small().chunks()
    more = np.array([(7, 0, 1, 2.5), (8, 1, 0, -1.0)], MARK_DTYPE)
    chunks.insert(-1, Chunk("marks", {"texts": ["loss", "step"]}, {"rows": more}))
    recording = read(chunks)
    assert not recording.unfinished
    named = [(recording.texts[mark["name"]], mark["value"], mark["thread"]) for mark in recording.marks]
    assert named == [("step", 1.5, 1), ("step", 2.5, 0), ("loss", -1.0, 1)]


def test_a_recording_takes_chunks_as_they_come() -> None:
    """What was seen of it stays as it was, and nothing of it can be written."""
    chunks, growing = small().chunks(), Recording()
    for chunk in chunks:
        growing.take(chunk)
    whole = read(chunks)
    assert (growing.start, growing.processes, growing.texts) == (whole.start, whole.processes, whole.texts)
    seen, times = growing.waits, growing.waits["time_ns"].tolist()
    for _ in range(200):
        growing.write("waits", arrays={"rows": chunk_of(chunks, "waits").arrays["rows"]})
    assert len(growing.waits) == 201 * len(times) and growing.waits["time_ns"].tolist() == 201 * times
    assert seen["time_ns"].tolist() == times
    for recording in (growing, whole):
        for name in ("samples", "waits", "totals", "stacks", "native_frames", "names"):
            assert not getattr(recording, name).flags.writeable, name


def test_a_thread_can_be_named_later() -> None:
    chunks = small().chunks()
    chunks.insert(-1, Chunk("threads", {"rows": [{"index": 1, "name": "pool"}]}))
    recording = read(chunks)
    assert [(thread.tid, thread.name) for thread in recording.threads] == [(100, "main"), (101, "pool")]


def test_an_older_file_lacks_fields_and_a_newer_one_has_more() -> None:
    made = small()
    kept = ["time_ns", "thread", "stack"]
    old = np.array(
        [tuple(row[name] for name in kept) for row in made.samples], [(name, SAMPLE_DTYPE[name]) for name in kept]
    )
    new = np.zeros(
        len(made.totals), [*((name, TOTAL_DTYPE[name]) for name in TOTAL_DTYPE.names or ()), ("extra", "<f8")]
    )
    for name in TOTAL_DTYPE.names or ():
        new[name] = [row[name] for row in made.totals]
    chunks = made.chunks()
    chunk_of(chunks, "processes").fields["rows"][0]["unheard_of"] = 1
    replace_chunk(chunks, Chunk("samples", {"new_field": 1}, {"rows": old, "new_array": old}))
    replace_chunk(chunks, Chunk("totals", {}, {"rows": new}))
    chunks.insert(2, Chunk("new_kind", {"x": 1}, {"rows": old}))
    recording = read(chunks)
    assert not recording.unfinished
    assert recording.samples["time_ns"].tolist() == [row["time_ns"] for row in made.samples]
    assert not recording.samples["on_cpu_ns"].any() and recording.samples.dtype == SAMPLE_DTYPE
    assert recording.totals.tobytes() == array(made.totals, TOTAL_DTYPE).tobytes()


def test_rows_that_refer_to_what_is_missing_are_left_out_and_said() -> None:
    made = small()
    made.samples[0]["thread"] = 9
    made.waits[0]["stack"] = 99
    recording = made.recording()
    assert "refer to what is missing" in recording.unfinished
    assert (len(recording.samples), len(recording.waits)) == (len(made.samples) - 1, len(made.waits) - 1)
    made = small()
    whole = len(made.stacks)
    for missing in ("python_count", "native_count", "kernel_count"):  # its frames are not there
        made.stacks[whole:] = [row(STACK_DTYPE, **{missing: 1})]
        assert len(made.recording().stacks) == whole, missing
    made.stacks[whole:] = [row(STACK_DTYPE, native_count=0xFFFF, kernel_count=0xFFFF), row(STACK_DTYPE)]
    assert len(made.recording().stacks) == whole, "nor is what follows, whose frames could be anywhere"


def test_a_recording_without_native_frames_is_read_as_before() -> None:
    """Files from before they were recorded have neither the kinds nor the columns."""
    chunks = [chunk for chunk in small().chunks() if chunk.kind not in ("files", "natives", "names")]
    stacks = chunk_of(chunks, "stacks").arrays
    kept = ["process", "python_count", "status"]
    old = np.array([tuple(one[name] for name in kept) for one in stacks["stacks"]], [(n, STACK_DTYPE[n]) for n in kept])
    replace_chunk(chunks, Chunk("stacks", {}, {"stacks": old, "python": stacks["python"]}))
    del chunks[0].fields["native"]
    recording = read(chunks)
    assert not recording.unfinished and len(recording.stacks) == 2
    assert recording.files == [] and len(recording.names) == 0 and len(recording.native_frames) == 0
    assert recording.stacks["native_count"].tolist() == recording.stacks["kernel_count"].tolist() == [0, 0]
    frames = [frame.name for frame in StackSource(recording).frames(1, 0)]
    assert frames == ["Worker.run", "Worker.run"]


def held(recording: Recording) -> list[str]:
    """Sections that have something in them."""
    return [name for name in SECTIONS if len(getattr(recording, name))]


@pytest.mark.second_tier
def test_a_file_cut_anywhere_holds_what_was_whole() -> None:
    chunks = small().chunks()
    data = file_bytes(chunks)
    ends = (len(MAGIC) + np.cumsum([len(encode(chunk)) for chunk in chunks])).tolist()
    kinds = [chunk.kind for chunk in chunks]
    assert ends[-1] == len(data)
    for cut in range(len(data)):
        whole = sum(end <= cut for end in ends)
        if whole == 0:
            with pytest.raises(RecordingError):
                read_recording(io.BytesIO(data[:cut]))
            continue
        recording = read_recording(io.BytesIO(data[:cut]))
        assert held(recording) == [name for name in SECTIONS if name in kinds[:whole]], cut
        expected = "it has no end" if cut in ends else "ends inside a chunk"
        assert expected in recording.unfinished, cut
    assert not read_recording(io.BytesIO(data)).unfinished


def test_what_follows_the_end_is_said() -> None:
    data = file_bytes(small().chunks())
    assert "damaged" in read_recording(io.BytesIO(data + b"more than sixteen bytes")).unfinished


def test_the_writer_writes_what_the_reader_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.bpfprof"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    writer = RecordingWriter(fd)
    chunks = small().chunks()
    for chunk in chunks:
        writer.write(chunk.kind, chunk.fields, chunk.arrays)
    os.close(fd)
    assert path.read_bytes() == file_bytes(chunks)
    assert writer.written_bytes == path.stat().st_size


@pytest.mark.parametrize(
    "data",
    [b"", b"BPFPROF", b"BPFPROF\x01" + bytes(64), b"#!/bin/sh\n", bytes(100), MAGIC, MAGIC + encode(Chunk("end"))],
)
def test_what_is_not_a_recording_is_refused(data: bytes) -> None:
    with pytest.raises(RecordingError):
        read_recording(io.BytesIO(data))


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("python3", "MainThread", "MainThread"),
        ("python3", "loader", "loader"),
        ("python3", "", "python3"),
        ("blas", "", "blas"),
        ("poker", "Thread-3 (run)", "poker"),  # the kernel was told more than Python
        ("poker", "loader", "loader"),
        ("worker", "Thread-3", "Thread-3"),  # it has the name of its process
        ("Thread-3 (some_", "Thread-3 (some_function)", "Thread-3 (some_function)"),  # CPython 3.14 tells the kernel
    ],
)
def test_the_name_of_a_thread(name: str, given: str, shown: str) -> None:
    thread = RecordedThread(name=name, given_name=given)
    assert thread.shown_name(RecordedProcess(name="worker of all")) == shown


@pytest.mark.parametrize(
    ("name", "words", "given", "own"),
    [
        ("gunicorn: worke", ["gunicorn: worker [app:app]"], "", "gunicorn: worker [app:app]"),
        ("gunicorn: worke", ["gunicorn: worker [app:app]", "", ""], "", "gunicorn: worker [app:app]"),
        ("gunicorn: worke", ["gunicorn: worker [app:app]"], "ForkPoolWorker-1", "ForkPoolWorker-1"),
        ("uvicorn", ["/v/bin/uvicorn", "app:app"], "", ""),
        ("a_long_name_of_", ["a_long_name_of_a_program", "--option"], "", ""),
        ("worker", ["worker"], "", ""),
        ("gunicorn: worke", [], "", ""),
        ("gunicorn: worke", ["gunicorn: worker " + "x" * 100], "", "gunicorn: worker " + "x" * 63),
    ],
)
def test_what_a_program_calls_its_process(name: str, words: list[str], given: str, own: str) -> None:
    assert RecordedProcess(name=name, command_line=words, given_name=given).own_name == own


def test_calls_of_all_chunks_share_their_names() -> None:
    chunks = small().chunks()
    more = array([row(CALL_DTYPE, thread=1, function=1, count=5)], CALL_DTYPE)
    chunks.insert(-1, Chunk("calls", {"texts": ["cuInit", "cudaMemcpy"]}, {"rows": more}))
    recording = read(chunks)
    assert not recording.unfinished
    assert [(recording.texts[call["function"]], int(call["count"])) for call in recording.calls] == [
        ("cudaMemcpy", 3),
        ("cudaMemcpy", 5),
    ]
