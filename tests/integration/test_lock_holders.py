"""Who held a lock while others waited, of each kind of lock; lock_kinds.py knows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, json_line, needs_root, program, running

pytestmark = needs_root
EXACT = ("lock", "rlock", "condition", "semaphore", "mutex", "shared", "spawned", "flock", "fcntl")
KINDS = (*EXACT, "kernel")
# They mostly sleep: all are recorded together, also one whose locks tell waiters apart, not what they wait for.
PARKED = "sid-3.14"
RECORD_S = 3
# Of the waited time, where the holder may be another one than the program says: it takes the time before and after the
# call, the recording that of the system call. 1.5 % at most was seen.
WRONG = 0.05


@dataclass
class Held:
    truth: dict[str, Any]
    row: dict[str, Any]  # of the report, by lock

    def by_tid(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for holder in self.row["holders"]:
            found[holder["tid"]] = found.get(holder["tid"], 0.0) + holder["wait_s"]
        return found


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Held]]:
    folder = tmp_path_factory.mktemp("locks")
    path, found = folder / "x.bpfprof", {}
    commands = {kind: (PYTHON, program("lock_kinds.py"), kind) for kind in KINDS}
    if PARKED in ALL_INTERPRETERS:
        commands[PARKED] = (ALL_INTERPRETERS[PARKED], program("lock_kinds.py"), "lock")
    with contextlib.ExitStack() as stack:
        targets = {kind: stack.enter_context(running(*command, str(folder))) for kind, command in commands.items()}
        pids = [word for target in targets.values() for word in ("-p", target.pid)]
        bpfprof("record", *pids, "-d", RECORD_S, "-o", path)
        with open(path, "rb") as file:
            recording = read_recording(file)
        truths = {}
        for kind, target in targets.items():
            target.tell(f"{recording.start['start_ns'] / 1e9} {recording.end['end_ns'] / 1e9}")
            truths[kind] = json_line(target.answer())
    report = bpfprof("report", path, "--by", "lock", "-n", "100").stdout
    rows = json.loads(bpfprof("report", path, "--by", "lock", "-f", "json").stdout)["rows"]
    for kind, truth in truths.items():
        tids = set(map(int, truth["held_s"]))
        own = [row for row in rows if tids & set(row["waiting_tids"])]
        found[kind] = Held(truth, max(own, key=lambda row: float(row["wait_self_s"])))
        assert found[kind].row["lock"] in report
    yield found


@pytest.mark.parametrize("kind", [*EXACT, PARKED])
def test_the_holder_is_right(kind: str, held: dict[str, Held]) -> None:
    if kind not in held:
        pytest.skip("no CPython 3.14: see tests/interpreters")
    truth, row = held[kind].truth, held[kind].row
    assert row["wait_self_s"] == pytest.approx(truth["waited_s"], rel=WRONG)
    whole = sum(truth["held_s"].values())
    found = held[kind].by_tid()
    wrong = sum(abs(found.get(int(tid), 0) - row["wait_self_s"] * ns / whole) for tid, ns in truth["held_s"].items())
    assert wrong / 2 <= WRONG * row["wait_self_s"], (found, truth)


def test_the_kernel_s_lock_of_a_file(held: dict[str, Held]) -> None:
    """Who writes 64 MiB keeps others from writing a page."""
    row, tids = held["kernel"].row, [*held["kernel"].truth["held_s"]]
    assert [*row["reasons"]] == ["kernel-lock"]
    assert held["kernel"].by_tid()[int(tids[0])] >= (1 - WRONG) * row["wait_self_s"]
    assert row["where"]["function"] == "write_small"


@pytest.mark.parametrize(
    ("kind", "reason"), [("flock", "file-lock"), ("fcntl", "file-lock"), ("shared", "lock"), ("spawned", "lock")]
)
def test_a_lock_of_several_processes_is_one(kind: str, reason: str, held: dict[str, Held]) -> None:
    row = held[kind].row
    assert set(row["waiting_tids"]) == set(map(int, held[kind].truth["held_s"])) and [*row["reasons"]] == [reason]
    assert {holder["pid"] for holder in row["holders"] if holder["pid"]} == set(row["waiting_tids"])
