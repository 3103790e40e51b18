"""The table of calls of libraries, and the same in the JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bpfprof.model.calls import length_at
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.threads.library_calls import library_calls
from bpfprof.render.formats import RenderOptions
from bpfprof.render.report_json import render_json
from bpfprof.render.summary import render_summary
from bpfprof.render.table import render_table
from tests.unit.recording.hand_made import MS, HandMade, Story

BY_CALL = RenderOptions(by="call")
LIBRARY = {"/usr/lib/libcudart.so.13": 44}


def profile(*calls: tuple[int, str, int, int, dict[str, Any]], libraries: dict[str, int] | None = None) -> Profile:
    """Of two threads."""
    made = HandMade()
    made.process(100)
    for tid in (100, 101):
        Story.begin(made, tid=tid).run(10 * MS).total()
    for thread, function, count, total_ns, values in calls:
        made.call(thread, function, count, total_ns, **values)
    made.start["counts_calls"] = True
    made.end = {"end_ns": int(made.totals[0]["time_ns"]), "call_libraries": LIBRARY if libraries is None else libraries}
    return build_profile(made.recording(), ProfileOptions(with_spans=True))


def test_where_calls_were_counted_steps_can_be_told() -> None:
    """From samples, and spans in the order of time."""
    for is_counted in (False, True):
        made = HandMade()
        made.process(100)
        first, second = (made.stack((made.code(name), 0, 0)) for name in ("first", "second"))
        story = Story.begin(made)
        for _ in range(3):
            story.run(10 * MS, (MS, first), (8 * MS, second)).block(MS)
        story.run(MS).total()
        if is_counted:
            made.call(0, "cudaLaunchKernel", 4, MS)
        made.end = {"end_ns": story.now_ns}
        found = build_profile(made.recording(), ProfileOptions(with_spans=True, adds_up=True))
        assert found.spans is not None
        on_cpu = found.spans[found.spans["state"] == ThreadState.ON_CPU]
        assert (len(found.samples) == 6, len(on_cpu) >= 6) == (is_counted, is_counted)


SOME = (
    (0, "cudaMemcpy", 4, 8 * MS, {"bytes": 4 << 20, "direction": 2}),
    (1, "cudaMemcpy", 1, 4 * MS, {"bytes": 1 << 20, "direction": 2}),
    (0, "cudaMemcpy", 2, 1 * MS, {"bytes": 1 << 10, "direction": 3}),
    (0, "cuMemcpyHtoD", 4, 7 * MS, {"bytes": 4 << 20, "flags": 1}),
    (1, "ncclAllReduce", 1, 5 * MS, {"flags": 2, "lengths": 0}),
    (0, "cudaMemcpy", 6, 12 * MS, {"bytes": 6 << 20, "direction": 2}),
)


def block(made: Profile, **options: Any) -> list[str]:
    parts = render_table(made, replace(BY_CALL, **options)).split("\n\n")
    (found,) = [part for part in parts if part.startswith("calls of libraries")]
    assert all(len(line) <= 100 for line in found.splitlines())
    return found.splitlines()


def test_rows_are_added_up_by_function_and_direction() -> None:
    rows = {(row.name, row.is_inside, row.is_open): row for row in library_calls(profile(*SOME))}
    copies = rows["cudaMemcpy HtoD", False, False]
    assert (copies.count, copies.total_ns, copies.byte_count, copies.max_ns) == (11, 24 * MS, 11 << 20, 4 * MS)
    assert sorted(copies.threads) == [0, 1]
    assert copies.median_ns == pytest.approx(2 * MS, rel=0.23) and copies.p99_ns == pytest.approx(4 * MS, rel=0.23)
    assert rows["cudaMemcpy DtoH", False, False].count == 2
    assert rows["cuMemcpyHtoD", True, False].count == 4
    assert rows["ncclAllReduce", False, True].median_ns == 0


def test_the_table() -> None:
    lines = block(profile(*SOME))
    assert lines[0] == "calls of libraries, 44 functions of /usr/lib/libcudart.so.13"
    assert lines[2].split()[:2] == ["11", "0.024"] and lines[2].endswith("  11.5 MB   481 MB  cudaMemcpy HtoD")
    assert [line for line in lines if line.endswith(":")] == [
        "made by these calls, and in their times:",
        "had not returned when the recording ended:",
    ]
    assert lines[-1].split()[:4] == ["1", "0.005", "-", "-"] and lines[-1].endswith("  ncclAllReduce")
    assert block(profile(*SOME), limit=1)[-1] == "and 1 more row: --limit"


def test_it_stands_below_a_summary_too() -> None:
    text = render_summary(profile(*SOME), RenderOptions())
    assert text.index("calls of libraries, 44 functions") > text.index("quality:") and text.endswith("ncclAllReduce\n")


def test_names_of_a_recording_reach_no_terminal() -> None:
    made = profile((0, "cuda\x1b[31m\n", 1, MS, {}), libraries={"/a\x1b]0;x\x07/libcudart.so": 3})
    for text in (render_table(made, BY_CALL), render_json(made, BY_CALL), render_summary(made, RenderOptions())):
        assert not set(text) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    ("libraries", "words"),
    [
        ({}, "no CUDA, NCCL or HIP library was mapped by any target"),
        ({"/a/libcuda.so.1": 0}, "/a/libcuda.so.1 exports none of the functions that are counted"),
        (LIBRARY, "none was made while /usr/lib/libcudart.so.13 was probed"),
    ],
)
def test_why_there_are_none(libraries: dict[str, int], words: str) -> None:
    made = profile(libraries=libraries)
    assert words in " ".join(block(made)) and words in " ".join(render_summary(made, RenderOptions()).split())
    assert json.loads(render_json(made, RenderOptions()))["calls"] == {"libraries": libraries, "rows": []}


def test_without_them_there_is_nothing_of_them() -> None:
    plain = profile()
    plain = replace(plain, info=replace(plain.info, call_libraries=None))
    assert "calls of libraries were not counted: record --cuda does that" in render_table(plain, BY_CALL)
    assert "calls" not in render_summary(plain, RenderOptions())
    assert "calls" not in json.loads(render_json(plain, RenderOptions()))


def test_the_json() -> None:
    content = json.loads(render_json(profile(*SOME), BY_CALL))
    assert "rows" not in content and content["calls"]["libraries"] == LIBRARY
    first = content["calls"]["rows"][0]
    assert first["function"] == "cudaMemcpy" and first["direction"] == "HtoD" and first["count"] == 11
    assert first["total_s"] == pytest.approx(0.024) and first["bytes"] == 11 << 20 and first["tids"] == [100, 101]
    assert [row["returned"] for row in content["calls"]["rows"]].count(False) == 1


@pytest.mark.parametrize("ns", [1, 255, 256, 383, 384, 511, 512, 1_000_000, (1 << 40) - 1])
def test_a_length_is_within_23_percent(ns: int) -> None:
    lengths = np.zeros(64, np.uint32)
    power = max(8, ns.bit_length() - 1)
    lengths[2 * (power - 8) + (ns >> (power - 1) & 1) if ns >= 256 else 0] = 7
    for share in (0.5, 0.99):
        found = length_at(lengths, share, 1 << 50)
        assert ns / 1.23 <= found <= ns * 1.23 or ns < 256
        assert length_at(lengths, share, ns) <= ns
    assert length_at(np.zeros(64, np.uint32), 0.5, ns) == 0
