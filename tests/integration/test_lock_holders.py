"""Who held a lock while others waited, of each kind of lock; lock_kinds.py knows. Locks that nobody gives back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, needs_root, program, running
from tests.looks import Look
from tests.oracles.holders import EXACT, Score, Turn, command, recorded, scores
from tests.oracles.programs import Command

pytestmark = needs_root
POLLED = ("sqlite", "manager")  # who waits sleeps and looks again, or asks a process that has the lock for it
KINDS = [kind for kind in EXACT if kind not in POLLED]
# Its locks tell waiters apart, not what they wait for.
PARKED, OF_PARKED = "sid-3.14", ("lock", "locks", "hog", "rlocks", "semaphores", "monitor")
RECORD_S, TOGETHER = 3, 6
# Of the time that was waited; 99.5% are right where the machine is quiet. What others do on it meanwhile can leave the
# holder unknown for some time, and never makes it wrong.
RIGHT = 0.95
RIGHT_OF = {"timeout": 0.9}  # between two waits of 5 ms it waits for a CPU or the GIL, not for the lock


@dataclass
class Found:
    scores: dict[str, Score] = field(default_factory=dict)
    truths: dict[str, dict[int, list[Turn]]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of reports, by lock

    def record(self, path: Path, commands: dict[str, Command], times: int = 1) -> None:
        profile, truths = recorded(path, commands, times * RECORD_S)
        self.truths |= truths
        self.scores |= scores(profile, truths)
        self.rows += json.loads(bpfprof("report", path, "--by", "lock", "-f", "json").stdout)["rows"]

    def row(self, kind: str) -> dict[str, Any]:
        """That of most waiting."""
        own = [row for row in self.rows if set(self.truths[kind]) & set(row["waiting_tids"])]
        return max(own, key=lambda row: float(row["wait_self_s"]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """They mostly sleep: some are recorded together."""
    folder, found = tmp_path_factory.mktemp("locks"), Found()
    commands = {kind: command(PYTHON, kind, folder) for kind in ("kernel", *KINDS)}
    if PARKED in ALL_INTERPRETERS:
        commands |= {f"{kind} {PARKED}": command(ALL_INTERPRETERS[PARKED], kind, folder) for kind in OF_PARKED}
    names = [*commands]
    for number, begin in enumerate(range(0, len(names), TOGETHER)):
        found.record(folder / f"{number}.bpfprof", {name: commands[name] for name in names[begin : begin + TOGETHER]})
    yield found


@pytest.mark.parametrize("kind", [*KINDS, *(f"{kind} {PARKED}" for kind in OF_PARKED)])
def test_the_holder_is_right(kind: str, found: Found, tmp_path: Path, look: Look) -> None:
    if kind not in found.scores:
        pytest.skip("no CPython 3.14: see tests/sid.py")
    name, _, version = kind.partition(" ")
    alone = {kind: command(ALL_INTERPRETERS[version] if version else PYTHON, name, tmp_path)}

    def judge(times: int) -> None:
        score = recorded_again(alone, times, tmp_path).scores[kind] if times > 1 else found.scores[kind]
        assert score.waited_s > 0.5 and score.wrong <= 1 - RIGHT, score
        assert score.right >= RIGHT_OF.get(kind, RIGHT), score

    look(judge)


def recorded_again(commands: dict[str, Command], times: int, folder: Path) -> Found:
    again = Found()
    again.record(folder / "x.bpfprof", commands, times)
    return again


def test_the_kernel_s_lock_of_a_file(found: Found, tmp_path: Path, look: Look) -> None:
    """Who writes 64 MiB keeps others from writing a page."""
    alone = {"kernel": command(PYTHON, "kernel", tmp_path)}

    def judge(times: int) -> None:
        assert right_of_the_kernel_s(recorded_again(alone, times, tmp_path) if times > 1 else found) >= RIGHT

    look(judge)


def right_of_the_kernel_s(found: Found) -> float:
    row, (first, *_) = found.row("kernel"), found.truths["kernel"]
    assert [*row["reasons"]] == ["kernel-lock"] and row["where"]["function"] == "write_small"
    held_s = sum(holder["wait_s"] for holder in row["holders"] if holder["tid"] == first)
    return float(held_s / row["wait_self_s"])


@pytest.mark.parametrize(
    ("kind", "reason"), [("flock", "file-lock"), ("fcntl", "file-lock"), ("shared", "lock"), ("spawned", "lock")]
)
def test_a_lock_of_several_processes_is_one(kind: str, reason: str, found: Found) -> None:
    row = found.row(kind)
    assert set(row["waiting_tids"]) == set(found.truths[kind]) and [*row["reasons"]] == [reason]
    assert {holder["pid"] for holder in row["holders"] if holder["pid"]} == set(row["waiting_tids"])


def test_a_deadlock_that_was_there_before_is_said_first(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("lock_orders.py"), "deadlock") as target:
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", path)
        tids = [int(word) for word in target.first_line.split()[2:]]
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    assert [set(cycle) for cycle in report["deadlocks"]] == [set(tids)]
    assert bpfprof("offcpu", path).stdout.startswith("DEADLOCK: ")
    assert "DEADLOCK: " in bpfprof("report", path).stdout.splitlines()[1]


@pytest.mark.parametrize("kind", ["cycle", "same"])
def test_an_order_of_locks_that_may_end_in_a_deadlock(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("lock_orders.py"), kind) as target:
        bpfprof("record", "-p", target.pid, "-d", 2, "-o", path)
        tids = [int(word) for word in target.first_line.split()[2:]]
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    assert report["deadlocks"] == []
    found = [{order["tid"] for order in cycle} for cycle in report["lock_order_cycles"]]
    assert found == ([set(tids)] if kind == "cycle" else [])
    assert ("locks taken in another order" in bpfprof("offcpu", path).stdout) == (kind == "cycle")
