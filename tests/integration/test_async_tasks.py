"""Asyncio tasks: programs of every CPython that is read, which measure their own waits, in one recording."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    INTERPRETERS,
    Folded,
    bpfprof,
    checked,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)
from tests.looks import Look

pytestmark = needs_root

SECONDS = 20.0
# Tasks are looked at ten times a second, and 5 points are 5 standard deviations then: one of 20 waits is further away
# once in 80,000 recordings. Where others keep the CPUs there are fewer looks.
POINTS = 5.0


@dataclass
class Recorded:
    path: Path
    seconds: float
    waits: dict[int, list[tuple[str, str, float]]]  # by pid: (task, reason, seconds), as the program says

    @property
    def lines(self) -> Folded:
        return collapsed(self.path)


@pytest.fixture(scope="module")
def recorded_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Recorded]:
    """So many times SECONDS."""
    return cache(lambda times: _recorded(tmp_path_factory.mktemp("tasks") / "out.bpfprof", times * SECONDS))


@pytest.fixture
def recorded(recorded_for: Callable[[int], Recorded]) -> Recorded:
    return recorded_for(1)


def _recorded(path: Path, seconds: float) -> Recorded:
    with ExitStack() as stack:
        pythons = [python for name, python in INTERPRETERS.items() if not name.startswith("debian")]
        targets = [stack.enter_context(running(python, program("known_waits.py"))) for python in pythons]
        pids = [argument for target in targets for argument in ("--pid", target.pid)]
        recorder = stack.enter_context(recording("-o", path, *pids))
        for target in targets:
            target.tell(str(seconds))
        waits = {target.pid: json.loads(target.answer()) for target in targets}
        recorder.end()
    return Recorded(path, seconds, waits)


def test_each_task_waited_as_it_says(recorded_for: Callable[[int], Recorded], look: Look) -> None:
    def judge(times: int) -> None:
        recorded, seen = recorded_for(times), defaultdict[tuple[str, str, str], float](float)
        for process, who, frames, weight_us in recorded.lines.lines:
            assert who.startswith("task ") == frames[-1].startswith("[await: ")
            if who.startswith("task "):
                seen[process.rpartition("(")[2].rstrip(")"), who, frames[-1]] += weight_us / 1e6
        wrong = []
        for pid, waits in recorded.waits.items():
            assert {reason for _, reason, _ in waits} == {"sleep", "socket", "lock", "queue", "task"}
            for task, reason, seconds in waits:
                found_s = seen[str(pid), f"task {task}", f"[await: {reason}]"]
                points = 100 * (found_s - seconds) / recorded.seconds
                if abs(points) > POINTS:
                    wrong.append((pid, task, reason, seconds, points))
        assert not wrong

    look(judge)


def test_the_place_is_the_whole_chain(recorded: Recorded) -> None:
    chains = defaultdict(set)
    for process, who, frames, _ in recorded.lines.lines:
        functions = tuple(frame.partition(" ")[0] for frame in frames)
        chains[process].add((who, functions[:-1], frames[-1]))
    for found in chains.values():
        reader = "StreamReader.read", "StreamReader._wait_for_data"
        assert ("task receiver", ("receiver", "measured", *reader), "[await: socket]") in found
        assert ("task consumer", ("consumer", "measured", "Queue.get"), "[await: queue]") in found
        assert ("task gatherer", ("gatherer", "measured"), "[await: task]") in found


def test_tasks_are_no_part_of_the_time_of_threads(recorded: Recorded) -> None:
    checked(recorded.path)
    of_threads = [line for line in recorded.lines.lines if line[1].startswith("thread ")]
    total_s = sum(weight_us for *_, weight_us in of_threads) / 1e6
    with open(recorded.path, "rb") as file:
        recording_of_all = read_recording(file)
    # However long the machine took for it: the programs end some time after their 20 s.
    whole_s = (recording_of_all.end["end_ns"] - recording_of_all.start["start_ns"]) / 1e9
    assert whole_s > SECONDS and total_s < 1.05 * whole_s * len(recorded.waits)


def test_the_table_says_who_waits_for_whom(recorded: Recorded) -> None:
    table = bpfprof("offcpu", recorded.path, "--by", "task", "--limit", 100).stdout
    assert "no part of the threads' wall time" in table.replace("\n  ", " ")
    block = next(block for block in table.split("\n\n") if block.startswith("task receiver, process "))
    assert "socket" in block and "measured (known_waits.py:" in block and "awaited by task Task-1" in block
    gathered = next(block for block in table.split("\n\n") if block.startswith("tasks of sleep ("))
    assert "awaited by task gatherer" in gathered


def test_rate_0_looks_at_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.bpfprof"
    python = next(iter(INTERPRETERS.values()))
    with (
        running(python, program("known_waits.py")) as target,
        recording("-o", path, "--pid", target.pid, "--async-rate", 0) as recorder,
    ):
        target.tell("0.5")
        target.answer()
        recorder.end()
    assert not [line for line in collapsed(path).lines if line[1].startswith("task ")]
    assert "--async-rate 0" in bpfprof("offcpu", path, "--by", "task").stdout.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("arguments", "bound", "sentence"),
    [
        # Looks at tasks are ten a second and exact: all that could go on have been ready for nearly all of the time.
        (("computes", "20"), "python", r".*crunch.*; (19|20) other tasks of the event loop are ready and wait\."),
        (("threads", "12", "3"), "sleep", r".*query.*; 1[12] tasks have or want the 3 threads of an executor\."),
    ],
)
def test_who_waits_for_an_event_loop_or_for_its_threads(
    arguments: tuple[str, ...], bound: str, sentence: str, tmp_path: Path
) -> None:
    with running(next(iter(INTERPRETERS.values())), program("busy_loop.py"), *arguments) as target:
        bpfprof("record", "--pid", target.pid, "-d", "3", "-o", tmp_path / "out.bpfprof")
    verdict = json.loads(bpfprof("report", tmp_path / "out.bpfprof", "-f", "json").stdout)["verdict"]
    assert verdict["bound"] == bound and re.fullmatch(sentence, verdict["sentence"]), verdict
