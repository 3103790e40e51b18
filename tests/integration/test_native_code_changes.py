"""Code that comes and goes while it is recorded: libraries, programs, memory; and what the options on native code do.

code_changes.py does what a test tells it, and says from when to when it was busy in which function; so each sample has
one right answer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bpfprof.model.frames import Frame
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    NOBODY,
    PYTHON,
    Folded,
    Target,
    collapsed,
    json_line,
    needs_root,
    program,
    recording,
    running,
)
from tests.looks import Look

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled with cc")]
RATE_HZ = 499
# bpfprof looks at new code after some 15 ms, where nobody keeps it from a CPU: these are 10 times that and more.
LATE_NS, KNOWN_NS = 500_000_000, 200_000_000
LATE_MS, MADE_MS = 700, 600
CALLS_MS = (800, 30, 60, 120, 30, 60, 120, 800)


def compiled(folder: Path, name: str, *options: str) -> str:
    """busy.c with a function of this name, as a library; with -DIS_PROGRAM as a program."""
    shared = [] if "-DIS_PROGRAM" in options else ["-shared", "-fPIC"]
    path = str(folder / name)
    subprocess.run(["cc", "-O2", f"-DNAME={name}", *shared, *options, "-o", path, program("busy.c")], check=True)
    return path


def do(target: Target, **task: Any) -> dict[str, Any]:
    target.tell(json.dumps(task))
    return {**task, **json_line(target.answer())}


@dataclass
class Changes:
    """One recording of all that code_changes.py was told to do."""

    recording: Recording
    folded: Folded
    stderr: str
    pid: int
    done: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _source: StackSource | None = None

    def frames(self, stack: int, status: int) -> tuple[Frame, ...]:
        self._source = self._source or StackSource(self.recording)
        return self._source.frames(stack, status)

    def samples(self, start_ns: int, end_ns: int, pid: int = 0) -> list[tuple[int, tuple[Frame, ...]]]:
        """(time, frames) of the samples of a process in this time."""
        threads = [
            index
            for index, thread in enumerate(self.recording.threads)
            if self.recording.processes[thread.process].pid == (pid or self.pid)
        ]
        return [
            (int(row["time_ns"]), self.frames(int(row["stack"]), int(row["status"])))
            for row in self.recording.samples
            if start_ns <= row["time_ns"] <= end_ns and row["thread"] in threads
        ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Changes]:
    """With so many times the usual time in code that is looked at late."""
    return cache(lambda times: _recorded(tmp_path_factory.mktemp("changes"), times))


@pytest.fixture
def changes(recorded: Callable[[int], Changes]) -> Changes:
    return recorded(1)


def _recorded(folder: Path, times: int) -> Changes:
    done: dict[str, list[dict[str, Any]]] = {}
    names = ["busy_first", "busy_second"]
    libraries = [compiled(folder, name) for name in names]
    with ExitStack() as stack:
        target, stranger = (stack.enter_context(running(PYTHON, program("code_changes.py"))) for _ in range(2))
        command = "-p", target.pid, "-p", stranger.pid, "-r", RATE_HZ, "-o", folder / "x.bpfprof"
        recorder = stack.enter_context(recording(*command))
        late = compiled(folder, "busy_late")
        done["late"] = [do(target, do="call", path=late, function="busy_late", ms=times * LATE_MS)]
        done["swapped"] = [
            do(target, do="call", path=libraries[turn % 2], function=names[turn % 2], ms=ms)
            for turn, ms in enumerate(CALLS_MS)
        ]
        replaced = str(folder / "replaced")
        done["replaced"] = []
        for name, ms in (("busy_old", 600), ("busy_new", 600)):
            os.rename(compiled(folder, name), replaced)
            done["replaced"].append(do(target, do="call", path=replaced, function=name, ms=ms))
        gone = compiled(folder, "busy_gone")
        done["gone"] = [do(stranger, do="call", path=gone, function="busy_gone", ms=300, unlink=True)]
        other = [compiled(folder, "busy_program", "-DIS_PROGRAM"), "2000"]
        child = compiled(folder, "busy_child")
        done["forked"] = [do(target, do="fork", path=child, function="busy_child", ms=300, exec=other)]
        for kind, named, shared in (("named", True, False), ("plain", False, False), ("shared", False, True)):
            done[kind] = [do(target, do="make", ms=times * MADE_MS, map=named, shared=shared)]
        strange = Path(f"/tmp/perf-{stranger.pid}.map")
        strange.touch()
        os.chown(strange, NOBODY, NOBODY)  # before there is anything in it: it may be read at any time
        done["strange"] = [do(stranger, do="make", ms=400, map=True, shared=False)]
        ended = recorder.end()
        for it in (target, stranger):
            os.unlink(f"/tmp/perf-{it.pid}.map")
        assert ended.returncode == 0, ended.stderr
    with open(folder / "x.bpfprof", "rb") as file:
        read_back = read_recording(file)
    return Changes(read_back, collapsed(folder / "x.bpfprof"), ended.stderr, target.pid, done)


def names(frames: tuple[Frame, ...]) -> list[str]:
    return [frame.name for frame in frames]


def test_a_library_loaded_while_recording(recorded: Callable[[int], Changes], look: Look) -> None:
    """Its function is named within 0.5 s, and from then on the stacks are whole."""

    def judge(times: int) -> None:
        changes = recorded(times)
        (call,) = changes.done["late"]
        samples = changes.samples(call["start_ns"], call["end_ns"])
        since = {time_ns - call["start_ns"]: names(frames) for time_ns, frames in samples}
        first_ns = next((after_ns for after_ns, found in since.items() if "busy_late" in found), max(since))
        broken = [after_ns for after_ns, found in since.items() if found[0] in statuses(changes)]
        print(
            f"{len(samples)} samples, first named after {first_ns / 1e6:.0f} ms, "
            f"{len(broken)} not whole, the last after {max(broken, default=0) / 1e6:.0f} ms"
        )
        slowest_ns = max([first_ns, *broken])
        late = [found for after_ns, found in since.items() if after_ns > slowest_ns]
        assert slowest_ns < LATE_NS, f"named and whole after {slowest_ns / 1e6:.0f} ms"
        assert len(late) > 20 and sum("busy_late" in found and "call" in found for found in late) >= 0.98 * len(late)

    look(judge)


def statuses(changes: Changes) -> set[str]:
    return set(changes.recording.start["status_texts"].values()) - {"complete"}


@pytest.mark.parametrize("kind", ["swapped", "replaced"])
def test_no_library_is_taken_for_another(changes: Changes, kind: str) -> None:
    """Libraries that take turns at one address, and one at the same path as another before."""
    calls = changes.done[kind]
    print(f"{kind}: {len({call['address'] for call in calls})} addresses for {len(calls)} loads")
    wrong, unnamed, total = [], 0, 0
    for call in calls:
        own = {call["function"]}
        for time_ns, frames in changes.samples(call["start_ns"], call["end_ns"]):
            total += 1
            found = {name for name in names(frames) if name.startswith("busy_")}
            unnamed += not found
            if found - own:
                wrong.append(f"{found - own} {(time_ns - call['start_ns']) / 1e6:.0f} ms into {own}")
    print(f"{kind}: {len(wrong)} wrong, {unnamed} unnamed of {total}", *wrong[:8], sep="\n")
    assert total > 100
    assert not wrong
    assert unnamed < 0.5 * total


def test_a_deleted_library(changes: Changes) -> None:
    (call,) = changes.done["gone"]
    samples = changes.samples(call["start_ns"], call["end_ns"], call["pid"])
    named = [found for _, frames in samples if "busy_gone" in (found := names(frames))]
    print(f"deleted library: {len(named)} of {len(samples)} named")
    assert len(samples) > 20 and len(named) >= 0.9 * len(samples)


def test_fork_and_exec(changes: Changes) -> None:
    """The child's stacks are its own, before and after it runs another program."""
    (call,) = changes.done["forked"]
    samples = [frames for _, frames in changes.samples(call["start_ns"], call["end_ns"], call["pid"])]
    before = [frames for frames in samples if "busy_child" in names(frames)]
    after = [frames for frames in samples if "busy_program" in names(frames)]
    broken = [frames[0].name for frames in samples if frames[0].name in statuses(changes)]
    print(
        f"{len(samples)} samples: {len(before)} before exec, {len(after)} after, not whole: {len(broken)} {set(broken)}"
    )
    assert len(before) > 15 and len(after) > 20
    assert all("main" in names(frames) or "fork" in names(frames) for frames in before)
    for frames in after:
        assert not any(frame.file.endswith(".py") for frame in frames)
    whole = [frames for frames in after if names(frames)[0] == "_start"]
    assert len(whole) >= 0.7 * len(after)
    for frames in whole:  # below busy_program() may be the clock that it looks at
        found = names(frames)
        assert found[found.index("busy_program") - 1] == "main"
    assert len(broken) <= 0.25 * len(samples)


def texts(folded: Folded, pid: int) -> dict[str, int]:
    """Text of each frame -> microseconds."""
    found: dict[str, int] = {}
    for _, _, frames, weight in folded.of_process(pid).lines:
        for frame in set(frames):
            found[frame] = found.get(frame, 0) + weight
    return found


def leaves(samples: list[tuple[int, tuple[Frame, ...]]], address: int) -> tuple[int, int, int]:
    """(samples in the loop by its name, as memory by its address, others)"""
    named = sum(frames[-1].name == "made_loop" for _, frames in samples)
    plain = sum(
        frames[-1].file == "[memory]" and not frames[-1].name and 0 <= frames[-1].offset - address < 16
        for _, frames in samples
    )
    return named, plain, len(samples) - named - plain


def known(changes: Changes, kind: str) -> tuple[int, list[tuple[int, tuple[Frame, ...]]]]:
    """(address of a loop, samples of its call from when its mapping must have been looked at)"""
    (call,) = changes.done[kind]
    return call["address"], changes.samples(call["start_ns"] + KNOWN_NS, call["end_ns"])


def test_code_in_memory(recorded: Callable[[int], Changes], look: Look) -> None:
    """By the name its process gave it, or as memory; complete, as the loop keeps a frame pointer."""

    def judge(times: int) -> None:
        changes = recorded(times)
        for kind, place in (("named", 0), ("plain", 1)):
            address, samples = known(changes, kind)
            broken = [frames[0].name for _, frames in samples if frames[0].name in statuses(changes)]
            found = leaves(samples, address)
            print(f"named, as memory, others: {found}; {len(broken)} of {len(samples)} not whole {set(broken)}")
            assert len(samples) > 30
            # The rest is in Python, between two calls of it.
            assert found[place] >= 0.9 * len(samples) and len(broken) <= 0.02 * len(samples), kind
        shown = [text for text in texts(changes.folded, changes.pid) if "[memory]" in text]
        assert "made_loop ([memory])" in shown
        assert any(re.fullmatch(r"\[memory\]\+0x[0-9a-f]+", text) for text in shown)

    look(judge)


def test_code_in_shared_memory(recorded: Callable[[int], Changes], look: Look) -> None:
    """The kernel calls it /dev/zero (deleted); no file is there."""

    def judge(times: int) -> None:
        address, samples = known(recorded(times), "shared")
        print({(frames[-1].file, frames[-1].offset) for _, frames in samples})
        _, plain, others = leaves(samples, address)
        assert plain > 30 and others <= 0.1 * len(samples)

    look(judge)


def test_the_map_of_another_user_is_not_used(changes: Changes) -> None:
    (call,) = changes.done["strange"]
    found = texts(changes.folded, call["pid"])
    assert not any(text.startswith("made_loop") for text in found)
    assert any(text.startswith("[memory]+0x") for text in found)


# --- options


@pytest.fixture(scope="module")
def by_option(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folded]:
    """One target under each option at once."""
    folder, found = tmp_path_factory.mktemp("options"), {}
    with ExitStack() as stack:
        target = stack.enter_context(running(PYTHON, program("extension.py"), "--debug"))
        recorders = {
            option: stack.enter_context(
                recording("-p", target.pid, "-r", RATE_HZ, option, "-d", 5, "-o", folder / f"x{option}.bpfprof")
            )
            for option in ("--no-native", "--kernel", "--native-lines")
        }
        for option, recorder in recorders.items():
            done = recorder.end(None)
            assert done.returncode == 0, done.stderr
            found[option] = collapsed(folder / f"x{option}.bpfprof")
    return found


def test_without_native_frames(by_option: dict[str, Folded]) -> None:
    """Python functions only, and threads of C have a reason in place of frames."""
    seen = {frame for *_, frames, _ in by_option["--no-native"].lines for frame in frames if not frame.startswith("[")}
    assert {"call_back_thread", "at_the_bottom", "stay_in_c_thread"} <= {it.partition(" (")[0] for it in seen}
    assert all(re.fullmatch(r"[^;]+ \([^;]+\.py:\d+\)", frame) for frame in seen), seen


def test_kernel_frames_come_last(by_option: dict[str, Folded]) -> None:
    """Leafward of everything else, below the system call."""
    with_kernel = total = 0
    for _, _, frames, weight in by_option["--kernel"].lines:
        inner = [frame for frame in frames if not frame.startswith("[")]
        kinds = [frame.endswith("_[k]") for frame in inner]
        assert kinds == sorted(kinds), frames
        if frames[-1] == "[off-cpu: sleep]":
            total += weight
            with_kernel += weight * any(kinds)
    print(f"{100 * with_kernel / total:.1f} % of the sleep with kernel frames")
    assert with_kernel > 0.95 * total
    names = by_option["--kernel"].functions() | {f for *_, fs, _ in by_option["--kernel"].lines for f in fs}
    assert any("nanosleep" in name and name.endswith("_[k]") for name in names)
    assert not any(name.startswith(("bpf_", "__bpf")) for name in names)


def test_lines_of_native_code(by_option: dict[str, Folded]) -> None:
    """nested.c is built with -g: its lines, and the function that was inlined."""
    frames = {frame for *_, found, _ in by_option["--native-lines"].lines for frame in found}
    lines = {
        match[1]: int(match[2])
        for frame in frames
        if (match := re.fullmatch(r"(\w+) \(nested\.so nested\.c:(\d+)\)(?:_\[i\])?", frame))
    }
    print(lines)
    source = Path(program("nested.c")).read_text().splitlines()
    assert {"burn_in_c", "at_the_bottom", "c_level_1", "c_level_12", "native_worker"} <= set(lines)
    assert "below(callable" in source[lines["c_level_7"] - 1] or "LEVEL(7," in source[lines["c_level_7"] - 1]
    assert any(text in source[lines["native_worker"] - 1] for text in ("burn_in_c(0.005)", "rest_in_c", "for (;;)"))
    inlined = {frame for frame in frames if frame.endswith("_[i]")}
    assert any(frame.startswith("mix (nested.so nested.c:") for frame in inlined), inlined
    for *_, found, _ in by_option["--native-lines"].lines:
        for outer, inner in zip(found, found[1:]):
            if inner.startswith("mix ("):
                assert outer.startswith("burn_in_c (")
