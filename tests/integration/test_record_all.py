"""`bpfprof record -a`: every process of the machine in one recording, Python or not, and kernel threads."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bpfprof.model.frames import FrameKind
from bpfprof.recording.reader import Recording, read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    PYTHON,
    Folded,
    Target,
    bpfprof,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled with cc"),
    pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="training_loop.py and blas.py need numpy"),
]
WINDOW_S = 5
WARM_UP_S = 2
PIPELINE = "echo ready; while :; do seq 1 200000 | sort -n | uniq | wc -l; done >/dev/null"
PARKED = """
import threading
def park():
    print("ready", flush=True)
    threading.Event().wait()
park()
"""
FIRST_SAMPLE_S = 1.5


@dataclass
class All:
    """One recording of the whole machine. `command_ns`: when bpfprof was started."""

    recording: Recording
    folded: Folded
    targets: dict[str, int]  # name -> pid
    command_ns: int
    source: StackSource

    @cached_property
    def is_ours(self) -> npt.NDArray[np.bool_]:
        """For each thread. Another program of this machine may just have begun, and its files were never seen."""
        processes, names = self.recording.processes, PIPELINE.split()
        own = [process.pid in self.targets.values() or process.name in names for process in processes]
        return np.array([own[thread.process] for thread in self.recording.threads])

    def processes(self, name: str) -> list[str]:
        return sorted({process for process, *_ in self.folded.lines if process.startswith(f"process {name} (")})


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> All:
    folder = tmp_path_factory.mktemp("all")
    echo, path = str(folder / "echo"), folder / "x.bpfprof"
    subprocess.run(["cc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", echo, program("echo.c")], check=True)
    with ExitStack() as stack:

        def begin(*command: str) -> Target:
            return stack.enter_context(running(*command, env={"OPENBLAS_NUM_THREADS": "2"}))

        server = begin(echo, "server")
        targets = {
            "training loop": begin(PYTHON, program("training_loop.py")),
            "numpy": begin(PYTHON, program("blas.py")),
            "server": server,
            "client": begin(echo, "client", server.first_line.split()[1]),
            "shell": begin("sh", "-c", PIPELINE),
            "parked": begin(PYTHON, "-c", PARKED),
        }
        # Tables of files that were never seen take their time (0.3 s of CPU for libcrypto, which `sort` has): now.
        bpfprof("record", "-a", "-d", WARM_UP_S, "-o", folder / "first.bpfprof")
        command_ns = time.monotonic_ns()
        recorder = stack.enter_context(recording("-a", "-d", WINDOW_S, "-o", path))
        done = recorder.end(None)
        assert done.returncode == 0, done.stderr
        pids = {name: target.pid for name, target in targets.items()}
    with open(path, "rb") as file:
        read_back = read_recording(file)
    return All(read_back, collapsed(path), pids, command_ns, StackSource(read_back))


def test_each_shows_under_its_own_process(everything: All) -> None:
    expected = {
        "training loop": {"train_step", "average_gradients", "DataLoader.load"},
        "numpy": {"multiply"},
        "server": {"serve", "answer_request"},
        "client": {"ask"},
    }
    every = set.union(*expected.values())
    for name, functions in expected.items():
        found = everything.folded.of_process(everything.targets[name]).functions()
        assert functions - found == set(), name
        assert not (every - functions) & found, name
    for command in ("seq", "sort", "uniq", "wc"):
        processes = everything.processes(command)
        print(f"{command}: {len(processes)} processes")
        assert len(processes) >= 2, command
    assert any("sort" in name for name in {process.split()[1] for process, *_ in everything.folded.lines})


def test_a_process_that_sleeps_all_the_time_has_its_stack(everything: All) -> None:
    """The kernel side never meets it."""
    parked = everything.folded.of_process(everything.targets["parked"])
    (line,) = parked.lines
    _, _, frames, _ = line
    python = [frame.partition(" (")[0] for frame in frames if ".py:" in frame or "<string>" in frame]
    assert python == ["<module>", "park", "Event.wait", "Condition.wait"]
    assert frames[-1] == "[off-cpu: lock]"


def test_nearly_all_samples_are_whole(everything: All) -> None:
    """On the CPU 97 % of those of the programs started here, short processes included."""
    read_back = everything.recording
    reasons: Counter[str] = Counter()
    by_process: Counter[tuple[str, str]] = Counter()
    pairs, inverse = np.unique(read_back.samples[["stack", "status"]], return_inverse=True)
    texts = [everything.source.reason(int(everything.source.statuses[s]) if s else int(t)) for s, t in pairs.tolist()]
    for thread, position in zip(read_back.samples["thread"].tolist(), inverse.tolist()):
        if everything.is_ours[thread]:
            reasons[texts[position]] += 1
            name = read_back.processes[read_back.threads[thread].process].name
            by_process[(name, texts[position])] += bool(texts[position])
    total = sum(reasons.values())
    print(f"{100 * reasons[''] / total:.2f} % of {total} whole", dict(reasons), by_process.most_common(8), sep="\n")
    assert total > 200
    assert reasons[""] >= 0.97 * total


def test_nearly_all_waits_are_whole(everything: All) -> None:
    """Those of the programs started here that began in the recording."""
    rows, start_ns = everything.recording.waits, everything.recording.start["start_ns"]
    rows = rows[everything.is_ours[rows["thread"]]]
    began_ns = rows["time_ns"].astype(np.int64) - (rows["blocked_ns"] + rows["runqueue_ns"]).astype(np.int64)
    # Processes are added one after another at the start: a wait that began meanwhile has no stack.
    rows = rows[began_ns > start_ns + 200_000_000]
    reasons: Counter[str] = Counter()
    by_process: Counter[tuple[str, str]] = Counter()
    for row in rows:
        stack = int(row["stack"])
        reason = everything.source.reason(int(everything.source.statuses[stack]) if stack else int(row["status"]))
        reasons[reason] += 1
        if reason:
            thread = everything.recording.threads[row["thread"]]
            by_process[(everything.recording.processes[thread.process].name, reason)] += 1
    print(f"{100 * reasons[''] / len(rows):.2f} % of {len(rows)}", dict(reasons), by_process.most_common(12), sep="\n")
    assert reasons[""] + reasons["not started yet"] + reasons["not sampled"] >= 0.97 * len(rows)


def test_the_first_sample_comes_soon(everything: All) -> None:
    first_s = (int(everything.recording.samples["time_ns"].min()) - everything.command_ns) / 1e9
    print(f"first sample {first_s:.2f} s after the command was started")
    assert first_s < FIRST_SAMPLE_S


def test_kernel_threads_have_kernel_frames_only(everything: All) -> None:
    """And the idle task is no thread of anyone."""
    kernel = {
        index
        for index, process in enumerate(everything.recording.processes)
        if not process.command_line and process.pid in (2, *children_of_kthreadd())
    }
    seen = 0
    for rows in (everything.recording.samples, everything.recording.waits):
        for row in rows[rows["stack"] > 0]:
            if everything.recording.threads[row["thread"]].process not in kernel:
                continue
            frames = everything.source.frames(int(row["stack"]), int(row["status"]))
            assert frames and all(frame.kind == FrameKind.KERNEL for frame in frames), frames
            seen += 1
    print(f"{seen} stacks of {len(kernel)} kernel threads")
    assert seen > 0
    tids = {thread.tid for thread in everything.recording.threads}
    assert 0 not in tids
    assert not any(thread.name.startswith("swapper") for thread in everything.recording.threads)
    idle = {"do_idle", "cpu_startup_entry", "default_idle_call"}
    assert not idle & {name.removesuffix("_[k]") for name in everything.folded.functions()}
    assert not any(frame.removesuffix("_[k]") in idle for *_, frames, _ in everything.folded.lines for frame in frames)


def children_of_kthreadd() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == 2:
            found.add(int(path.parent.name))
    return found


def test_all_time_is_accounted_for(everything: All) -> None:
    """Also of processes that lived for a moment, by the lines of the report: no thread has more than the recording."""
    span_us = (everything.recording.end["end_ns"] - everything.recording.start["start_ns"]) / 1000
    by_thread: Counter[str] = Counter()
    for process, thread, _, weight in everything.folded.lines:
        by_thread[f"{process};{thread}"] += weight
    assert max(by_thread.values()) <= 1.01 * span_us
    for name in ("training loop", "numpy", "server", "client"):
        main = everything.folded.of_thread(everything.targets[name])
        assert main.total_us() == pytest.approx(span_us, rel=0.05), name
