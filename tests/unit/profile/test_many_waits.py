"""Recordings with many waits: the rows are in a file then, and time and memory are in proportion to them, or less."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from bpfprof.account import sorted_rows
from bpfprof.model import rows as model_rows
from bpfprof.model.samples import TOTAL_DTYPE, WAIT_DTYPE
from bpfprof.model.spans import ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.recording import contents
from bpfprof.recording.format import Chunk
from bpfprof.recording.reader import read_recording
from tests.hostile.cost import cost_of
from tests.unit.recording.hand_made import START_NS, HandMade, array, chunk_of, file_bytes, replace_chunk, row

THREADS, EACH_NS, BLOCKED_NS = 40, 20_000, 12_000
# A thread that blocks is named by its stack; 400 stacks stand for those of a program.
STACKS = 400


def many_waits(count: int, threads: int = THREADS) -> bytes:
    """So many waits of threads in turns, in chunks, each with its CPU time."""
    made = HandMade()
    process = made.process()
    for number in range(threads):
        made.thread(100 + number, process, name=f"worker-{number}")
    codes = [made.code(f"f{number}", process, first_line=number + 1) for number in range(20)]
    for number in range(STACKS):
        made.stack((codes[number % 20], 0, 0), (codes[number // 20], 0, 1), process=process)
    turn = np.arange(count)
    waits = np.zeros(count, WAIT_DTYPE)
    waits["thread"], waits["stack"] = turn % threads, turn * 7 % STACKS + 1
    done = turn // threads + 1  # waits of its thread, this one included
    waits["time_ns"], waits["blocked_ns"] = START_NS + done * EACH_NS, BLOCKED_NS
    waits["on_cpu_ns"], waits["syscall"] = done * (EACH_NS - BLOCKED_NS), 230
    each = int(done[-1])
    end_ns = START_NS + each * EACH_NS
    made.end = {"end_ns": end_ns}
    own = {"on_cpu_ns": each * (EACH_NS - BLOCKED_NS), "blocked_ns": each * BLOCKED_NS, "first_ns": START_NS}
    totals = [
        row(TOTAL_DTYPE, thread=number, time_ns=end_ns, since_ns=end_ns, state=1, syscall=-1, **own)
        for number in range(threads)
    ]
    chunks = made.chunks()
    replace_chunk(chunks, Chunk("totals", {}, {"rows": array(totals, TOTAL_DTYPE)}))
    place = chunks.index(chunk_of(chunks, "waits"))
    parts = [Chunk("waits", {}, {"rows": waits[at : at + 5000]}) for at in range(0, count, 5000)]
    return file_bytes([*chunks[:place], *parts, *chunks[place + 1 :]])


def test_waits_in_a_file_make_the_profile_of_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = many_waits(20_000)
    in_memory = build_profile(read_recording(io.BytesIO(data)), ProfileOptions(with_spans=True))
    for module in (model_rows, sorted_rows, contents):
        monkeypatch.setattr(module, "MOST_BYTES", 300_000)
    monkeypatch.setattr(model_rows, "_NEAR_BYTES", 70_000)
    monkeypatch.setattr(sorted_rows, "_PART_BYTES", 150_000)
    recording = read_recording(io.BytesIO(data))
    in_file = build_profile(recording, ProfileOptions(with_spans=True))
    assert len(recording.waits) == 20_000 and not recording.unfinished
    assert in_memory.spans is not None and in_file.spans is not None
    assert in_file.spans.tobytes() == in_memory.spans.tobytes()
    assert in_file.weights.tobytes() == in_memory.weights.tobytes()
    assert (in_file.threads, in_file.stacks, in_file.quality) == (
        in_memory.threads,
        in_memory.stacks,
        in_memory.quality,
    )
    assert sum(thread.wait_count for thread in in_file.threads) == 20_000


def test_where_there_is_no_room_for_a_file_rows_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    data = many_waits(20_000)
    expected = build_profile(read_recording(io.BytesIO(data)))
    for module in (model_rows, sorted_rows):
        monkeypatch.setattr(module, "MOST_BYTES", 300_000)
        monkeypatch.setattr(module, "write_at", no_room)
    assert build_profile(read_recording(io.BytesIO(data))).weights.tobytes() == expected.weights.tobytes()


@pytest.mark.parametrize(
    "wanted", [SpanFilter(window_ns=(40_000_000, 140_000_000)), SpanFilter(min_block_ns=EACH_NS // 2)]
)
def test_waits_of_a_part_are_sums_too(wanted: SpanFilter) -> None:
    options = ProfileOptions(with_spans=True, adds_up=True, filter=wanted)
    profile = build_profile(read_recording(io.BytesIO(many_waits(20_000, 2))), options)
    assert profile.spans is not None and profile.wait_times is not None
    assert len(profile.spans) <= 2 * (STACKS + 2), "of each thread one a stack, and what is no wait"
    assert len(profile.wait_times) == (10_000 if wanted.window_ns else 20_000)
    blocked = profile.spans["state"] == ThreadState.OFF_CPU
    assert profile.spans["duration_ns"][blocked].sum() == profile.wait_times["duration_ns"].sum()
    assert (profile.wait_times["duration_ns"] == BLOCKED_NS).all()


# 480,000 rows more have 47 MiB, and their spans 140. A timeline holds up to 300,000 intervals, 97 bytes each, in up to
# three copies while it folds them, also of the smaller recording. Of one thread some stretches of 131,072 waits
# are in memory, of the smaller recording one: 20 MiB each.
@pytest.mark.second_tier
@pytest.mark.parametrize("threads", [THREADS, 1])
@pytest.mark.parametrize(("name", "more_mib"), [("collapsed", 30), ("json", 60), ("chrome", 90), ("speedscope", 90)])
def test_time_is_in_proportion_to_the_waits_and_memory_is_not(
    name: str, more_mib: int, threads: int, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{count}.bpfprof" for count in (120_000, 600_000)]
    for path in paths:
        path.write_bytes(many_waits(int(path.stem), threads))
    for _ in range(3):
        small, large = (cost_of("report", path, "-f", name, "-o", tmp_path / "made") for path in paths)
        assert (small.code, large.code) == (0, 0), large.text
        if large.cpu_s < 12 * small.cpu_s and large.peak_bytes - small.peak_bytes < more_mib << 20:
            break
    # Five times the waits; a quadratic way takes 25 times as long. On a busy machine CPU time is up to twice as much,
    # and groups of threads that are made ahead wait longer for the one that is used.
    assert large.cpu_s < 12 * small.cpu_s
    assert large.peak_bytes - small.peak_bytes < more_mib << 20
