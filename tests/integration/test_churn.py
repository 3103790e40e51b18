"""Threads and processes that are born and die while they are recorded: their CPU time and names, against their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import INTERPRETERS, Folded, collapsed, json_line, needs_root, program, running
from tests.integration.recorded import recording as recording_of

SECONDS = 5
pytestmark = [needs_root, pytest.mark.skipif(not INTERPRETERS, reason="no CPython 3.11 to 3.15")]


@dataclass
class Churned:
    """What the program says of itself, and what was recorded."""

    truth: dict[str, Any]
    recording: Recording
    folded: Folded


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Churned]:
    path, python = tmp_path_factory.mktemp("churn") / "churn.bpfprof", next(iter(INTERPRETERS.values()))
    command = python, program("churn.py"), "--seconds", str(SECONDS)
    with running(*command) as target, recording_of("-p", target.pid, "-r", 499, "-o", path) as recorder:
        target.tell("go")
        truth = json_line(target.answer())
        recorder.end()
    with open(path, "rb") as file:
        yield Churned(truth, read_recording(file), collapsed(path))


def test_cpu_time_is_the_kernels(churned: Churned) -> None:
    """The kernel's sums leave out what a task needs for ending after its parent was told: some 15 us each."""
    last = {int(row["thread"]): int(row["on_cpu_ns"]) for row in churned.recording.totals}
    assert sum(last.values()) / 1e9 == pytest.approx(churned.truth["cpu_s"], rel=0.02, abs=0.03)


def test_every_one_was_seen_and_none_has_the_name_of_another(churned: Churned) -> None:
    names: dict[int, set[str]] = {int(tid): set(given) for tid, given in churned.truth["threads"].items()}
    threads = churned.recording.threads
    assert {thread.tid for thread in threads} >= {*names, *churned.truth["children"]}
    wrong = [it for it in threads if it.given_name and it.tid in names and it.given_name not in names[it.tid]]
    assert not wrong
    assert "born_0" in {it.given_name for it in threads}, "most end before their names are read; this one does not"


def test_none_has_the_functions_of_another(churned: Churned) -> None:
    children = {str(pid) for pid in churned.truth["children"]}
    seen = set()
    for process, _, frames, _ in churned.folded.lines:
        functions = {frame.split(" ")[0] for frame in frames} & {"thread_work", "child_work", "fork_child"}
        if not functions:
            continue
        is_child = process.rpartition("(")[2].rstrip(")") in children
        assert "thread_work" not in functions if is_child else "child_work" not in functions
        seen |= functions
    assert seen >= {"thread_work", "child_work"}
