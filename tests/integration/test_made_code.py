"""Code made at run time that a jitdump or a perf map names: of V8, of CPython for perf, and of a program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bpfprof.model.frames import FrameKind
from bpfprof.model.statuses import Status
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    INTERPRETERS,
    PYTHON,
    Folded,
    bpfprof,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root
ROW = np.dtype([("thread", "<u4"), ("stack", "<u4"), ("status", "u1"), ("time_ns", "<u8")])
CALLERS = ["first", "second", "third"]  # of made_unlisted.py
NODE = shutil.which("node")
# Trampolines that keep a frame pointer, and those before, in both forms that perf reads.
FOR_PERF = [(name, mode) for name, mode in (("3.12", "perf"), ("3.13", "perf_jit"), ("sid-3.15", "perf_jit"))]
FOR_PERF = [(name, mode) for name, mode in FOR_PERF if name in INTERPRETERS]


@dataclass
class Recorded:
    path: Path
    folded: Folded
    recording: Recording
    pids: dict[str, int]
    times: dict[str, tuple[int, int]]  # of made_again.py
    unlisted: dict[str, tuple[int, int]]  # of made_unlisted.py


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("made")
    path = folder / "x.bpfprof"
    part_time = program("part_time.py"), "--busy-ms", "60"
    commands = {f"{name} {mode}": (INTERPRETERS[name], "-X", mode, *part_time) for name, mode in FOR_PERF}
    commands["again"] = PYTHON, program("made_again.py")
    commands["unlisted"] = PYTHON, program("made_unlisted.py")
    if NODE:
        commands["node"] = "env", "-C", str(folder), NODE, "--perf-prof", program("made_late.js")
    with ExitStack() as stack:
        targets = {what: stack.enter_context(running(*command)) for what, command in commands.items()}
        pids = {what: target.pid for what, target in targets.items()}
        arguments = [word for pid in pids.values() for word in ("-p", pid)]
        recorder = stack.enter_context(recording(*arguments, "-r", 499, "-o", path))
        for name in ("again", "unlisted"):
            targets[name].tell("begin")
        times, unlisted = (json.loads(targets[name].answer()) for name in ("again", "unlisted"))
        recorder.end()
        for pid in pids.values():
            for name in (f"perf-{pid}.map", f"jit-{pid}.dump"):
                (Path("/tmp") / name).unlink(missing_ok=True)
    with open(path, "rb") as file:
        yield Recorded(path, collapsed(path), read_recording(file), pids, times, unlisted)


def test_stacks_are_whole(recorded: Recorded) -> None:
    """But in the first second of each function that nothing lists: until it is found its stacks end there.

    That is half a second on CPUs that five programs share; 80 to 98% of all stacks were whole in 25 recordings.
    """
    source, begun_ns = StackSource(recorded.recording), [begin for begin, _ in recorded.unlisted.values()]
    whole = total = 0
    rows = (recorded.recording.samples, recorded.recording.waits)
    for row in np.concatenate([it[["thread", "stack", "status", "time_ns"]].astype(ROW) for it in rows]):
        thread, stack = recorded.recording.threads[int(row["thread"])], int(row["stack"])
        is_unlisted = recorded.recording.processes[thread.process].pid == recorded.pids["unlisted"]
        if is_unlisted and any(0 <= int(row["time_ns"]) - begin_ns < 1_000_000_000 for begin_ns in begun_ns):
            continue
        status = int(source.statuses[stack]) if stack else int(row["status"])
        total += status != Status.NOT_SAMPLED
        whole += status == Status.OK
    assert whole >= 0.97 * total > 1_000, (whole, total)


def test_code_has_the_name_of_its_time(recorded: Recorded) -> None:
    """Of samples in either function, at one address; the first one begins before it is found."""
    source, wrong, seen = StackSource(recorded.recording), [], {"first_made": 0, "second_made": 0}
    for row in recorded.recording.samples:
        thread = recorded.recording.threads[int(row["thread"])]
        if recorded.recording.processes[thread.process].pid != recorded.pids["again"]:
            continue
        frames = source.frames(int(row["stack"]), int(row["status"]))
        now = [name for name, (begin, end) in recorded.times.items() if begin <= row["time_ns"] <= end]
        found = [frame.name for frame in frames if frame.name in seen]
        if found != now and found:
            wrong.append((now, found))
        for name in found:
            seen[name] += 1
    print(seen)
    assert not wrong and min(seen.values()) > 30


@pytest.mark.parametrize("name", CALLERS)
def test_code_that_nothing_lists_is_followed_once_it_was_met(recorded: Recorded, name: str) -> None:
    """A stack that ends in it has its rules made, which takes some 0.1 s; behind the first whole one nearly all are."""
    begin, end = recorded.unlisted[name]
    source, whole, cut = StackSource(recorded.recording), 0, []
    for row in recorded.recording.samples:
        thread = recorded.recording.threads[int(row["thread"])]
        if recorded.recording.processes[thread.process].pid != recorded.pids["unlisted"]:
            continue
        frames = source.frames(int(row["stack"]), int(row["status"]))
        if begin <= row["time_ns"] <= end and "[memory]" in frames[-1].file:
            is_whole = frames[0].kind != FrameKind.TRUNCATED
            assert [it.name for it in frames if it.name in CALLERS] == [name], frames
            whole += is_whole
            cut += [frames] if whole and not is_whole else []
    print(name, whole, len(cut))
    assert whole > 60 and len(cut) <= 0.02 * whole, cut[:2]


@pytest.mark.skipif(NODE is None, reason="no node")
def test_functions_of_node(recorded: Recorded) -> None:
    folded = recorded.folded.of_process(recorded.pids["node"])
    found_us = total_us = 0
    for _, _, frames, us in folded.lines:
        names = [
            frame.partition(":")[2].lstrip("~^+*").partition(" ")[0] for frame in frames if frame.startswith("JS:")
        ]
        if "fib" in names:
            assert set(names[names.index("fib") :]) == {"fib"}, frames
            found_us += us
        total_us += us * (not frames[-1].startswith("["))
    assert found_us > 0.5 * total_us > 100_000, (found_us, total_us)


@pytest.mark.parametrize("what", [" ".join(each) for each in FOR_PERF])
def test_python_with_trampolines_looks_as_without(recorded: Recorded, what: str) -> None:
    lines = recorded.folded.of_process(recorded.pids[what]).lines
    functions = {frame.partition(" (")[0] for _, _, frames, _ in lines for frame in frames}
    assert {"main", "turn"} <= functions
    odd = [line for line in lines if any("py::" in frame or "[memory]" in frame for frame in line[2])]
    assert not odd, odd[:3]
    shown = bpfprof("report", recorded.path, "-f", "collapsed", "--show-interpreter").stdout
    own = [line for line in shown.splitlines() if f"({recorded.pids[what]});" in line]
    assert any("[trampolines]" in line for line in own)
    assert what != "3.12 perf" or any(";py::turn:" in line for line in own)
