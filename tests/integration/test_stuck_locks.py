"""Who holds the locks of programs that stand still, and who waits for whom in a circle: stuck_locks.py knows."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from bpfprof.capture.now import process_now
from bpfprof.model.ids import Pid
from bpfprof.query.waits.wait_graph import cycles, endless_waits
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, needs_root, program, running

pytestmark = needs_root
VERSIONS = [it for it in ALL_INTERPRETERS if not it.endswith("t")]
WITHOUT_STACKS = ("3.6", "3.7")  # an ExitStack keeps functions there, not methods


def holders_in(process: dict[str, Any]) -> dict[str, str | None]:
    """By name: for each thread that waits for something, who has it."""
    names = {thread["tid"]: thread["name"] for thread in process["threads"]}
    waits = {thread["name"]: thread["waits_for"] or {} for thread in process["threads"]}
    return {name: names.get(wanted.get("held_by_tid")) for name, wanted in waits.items()}


def circles_in(process: dict[str, Any]) -> list[list[str]]:
    names = {thread["tid"]: thread["name"] for thread in process["threads"]}
    return sorted(sorted(names[tid] for tid in circle) for circle in process["deadlocks"])


@pytest.mark.gate
@pytest.mark.parametrize("version", VERSIONS)
def test_holders_and_circles_are_those_that_there_are(version: str) -> None:
    with running(ALL_INTERPRETERS[version], program("stuck_locks.py")) as target:
        told = json.loads(target.first_line)
        (process,) = json.loads(bpfprof("dump", "-j", target.pid).stdout)["processes"]
        lines = bpfprof("dump", target.pid).stdout.splitlines()
        target.end()
    holders, found = told["holders"], holders_in(process)
    if version in WITHOUT_STACKS:
        holders = {name: it for name, it in holders.items() if "pushed" not in name and "wanted" not in name}
    assert len(holders) >= 100
    assert {name: found[name] for name in holders} == holders
    assert circles_in(process) == sorted(sorted(names) for names in told["circles"])
    assert len([line for line in lines if line.startswith("DEADLOCK: ")]) == len(told["circles"])


@pytest.mark.parametrize("version", [it for it in ("3.8", "3.11", "3.13", "sid-3.15") if it in ALL_INTERPRETERS])
def test_a_recording_says_deadlocked_with_the_same_circles(version: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(ALL_INTERPRETERS[version], program("stuck_locks.py"), "service", "itself", "has_end") as target:
        told = json.loads(target.first_line)
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", path)
        target.end()
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    names = {thread["tid"]: thread["name"] for thread in report["threads"]}
    circles = sorted(sorted(names[tid] for tid in circle) for circle in report["deadlocks"])
    assert circles == sorted(sorted(it) for it in told["circles"])
    verdict = report["verdict"]
    assert verdict["bound"] == "stuck" and verdict["sentence"].startswith("Deadlocked: ")
    assert verdict["where"]["file"].endswith("stuck_locks.py")


def test_a_wait_that_ends_by_itself_is_in_no_deadlock(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("stuck_locks.py"), "has_end") as target:
        bpfprof("record", "-p", target.pid, "-d", 1, "-o", path)
        target.end()
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    assert report["deadlocks"] == [] and report["verdict"]["bound"] != "stuck"


HEALTHY = [it for it in ("3.8", "3.10", "3.12", "3.13", "sid-3.15") if it in ALL_INTERPRETERS]
TOGETHER, ROUNDS = 10, 4


@pytest.mark.parametrize("version", HEALTHY)
def test_programs_that_go_on_have_no_false_holders_and_no_deadlocks(version: str) -> None:
    """Ten of 12 threads each, which is more than the CPUs can do, four times: 40 looks for each interpreter."""
    named = 0
    with contextlib.ExitStack() as stack:
        command = ALL_INTERPRETERS[version], program("ordered_locks.py")
        targets = [stack.enter_context(running(*command)) for _ in range(TOGETHER)]
        for target in targets * ROUNDS:
            begin_s = time.monotonic()
            process = process_now(Pid(target.pid))
            end_s = time.monotonic()
            target.tell(f"{begin_s} {end_s}")
            turns = {int(tid): rows for tid, rows in json.loads(target.answer()).items()}
            holders = {
                thread.tid: thread.waits_for.held_by_tid
                for thread in process.threads
                if thread.waits_for and thread.waits_for.kind == "lock" and thread.waits_for.held_by_tid
            }
            false = [pair for pair in holders.items() if not has_held(turns, *pair)]
            assert false == [] and cycles(endless_waits(process.threads)) == []
            named += len(holders)
    print(version, named)
    assert named > 0


def has_held(turns: dict[int, list[list[float]]], waiting: int, holder: int) -> bool:
    """Whether one had a lock that the other waited for."""
    return any(
        lock == wanted and got < had and gave > asked
        for wanted, asked, had, _ in turns.get(waiting, [])
        for lock, _, got, gave in turns.get(holder, [])
    )


@pytest.mark.parametrize("version", [it for it in ("3.8", "3.12", "3.13") if it in ALL_INTERPRETERS])
def test_a_thread_with_the_id_of_one_that_is_gone_does_not_have_its_lock(version: str) -> None:
    with running(ALL_INTERPRETERS[version], program("forked_rlock.py")) as target:
        (process,) = json.loads(bpfprof("dump", "-j", int(target.first_line)).stdout)["processes"]
        target.end()
    found = holders_in(process)
    wanted = {"MainThread": None, "wants enter": "enter", "wants acquire": "acquire"}
    assert {name: found[name] for name in wanted} == wanted and "has its id" in found
