"""Cython, pybind11, pyo3, uvloop: their frames stand in true order among those of Python; uvloop has its tasks."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import packages
from tests.integration.recorded import (
    INTERPRETERS,
    Folded,
    bpfprof,
    collapsed,
    let_run,
    needs_root,
    program,
    recording,
    running,
)

VERSION = "3.12"
TASKS_ONLY = [version for version in ("3.11", "3.13") if version in INTERPRETERS]
pytestmark = [
    needs_root,
    pytest.mark.skipif(VERSION not in INTERPRETERS, reason="no CPython 3.12 under ~/.pyenv"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="the extensions are compiled with cc and c++"),
]
# From the root: parts of the names of frames, as each was called by the one before.
CHAIN = ["uv_run (", "Turns.turn (", *["cython_part.cython_calls ("] * 3, "Turns.from_cython ("]
CHAIN += [
    "parts::pybind_calls(pybind11::object) (",
    "Turns.from_pybind (",
    "__pymethod_get__ (",
    "Key.__eq__ (",
    "burn (",
]


@dataclass
class Recorded:
    path: Path
    folded: Folded
    pids: list[int]  # that of all extensions first


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    path, script = tmp_path_factory.mktemp("callbacks") / "x.bpfprof", program("native_callbacks.py")
    python, found = INTERPRETERS[VERSION], packages.folder(VERSION, "uvloop", "rpds-py", "Cython", "pybind11")
    made = packages.extensions(python, found, program("cython_part.pyx"), program("pybind_part.cpp"))
    with ExitStack() as stack:
        targets = [stack.enter_context(running(python, script, env={"PYTHONPATH": f"{found}:{made}"}))]
        for version in TASKS_ONLY:
            environment = {"PYTHONPATH": packages.folder(version, "uvloop")}
            targets.append(stack.enter_context(running(INTERPRETERS[version], script, "--tasks", env=environment)))
        pids = [target.pid for target in targets]
        words = (word for pid in pids for word in ("-p", pid))
        with recording(*words, "-r", 499, "-o", path) as recorder:
            time.sleep(2.5)  # the least length of the recording: tasks are looked at some time after its start
            let_run(targets[0].pid, 0.8)
            assert recorder.end().returncode == 0
    yield Recorded(path, collapsed(path), pids)


def test_stacks_are_whole(recorded: Recorded) -> None:
    quality = " ".join(bpfprof("report", recorded.path, "--details").stdout.split())
    complete = re.search(r"stacks ([\d.]+)% complete", quality)
    assert complete and float(complete[1]) >= 98, quality


def burning(recorded: Recorded) -> list[tuple[tuple[str, ...], int]]:
    lines = recorded.folded.of_process(recorded.pids[0]).lines
    return [(frames, us) for _, _, frames, us in lines if any(frame.startswith("burn (") for frame in frames)]


def test_each_stands_between_its_caller_and_what_it_calls(recorded: Recorded) -> None:
    seen_us = 0
    for frames, us in burning(recorded):
        known = [name for frame in frames for name in dict.fromkeys(CHAIN) if name in frame]
        if "Key.__eq__ (" in known and not frames[0].startswith("[truncated"):
            assert known == CHAIN, frames
            seen_us += us
    assert seen_us > 100_000


@pytest.mark.parametrize("caller", ["cython_part.Holder.method (", "cython_part.Holder.<generator"])
def test_methods_and_generators_of_cython_have_their_names(recorded: Recorded, caller: str) -> None:
    found = 0
    for frames, us in burning(recorded):
        places = [place for place, frame in enumerate(frames) if frame.startswith(caller)]
        if places:
            (at,) = [place for place, frame in enumerate(frames) if frame.startswith("burn (")]
            (turn,) = [place for place, frame in enumerate(frames) if frame.startswith("Turns.turn (")]
            assert turn < places[0] <= places[-1] < at, frames
            found += us
    assert found > 50_000


def test_no_name_is_mangled(recorded: Recorded) -> None:
    names = {frame for _, _, frames, _ in recorded.folded.lines for frame in frames}
    assert not [name for name in names if name.startswith(("_ZN", "_R", "__pyx_pw_", "__pyx_pf_", "__pyx_f_"))]
    assert any(name.startswith("uvloop.loop.Loop.run_forever (") for name in names)


def test_an_idle_loop_waits_in_its_poll(recorded: Recorded) -> None:
    for pid in recorded.pids:
        polled_us = [
            us for _, _, frames, us in recorded.folded.of_process(pid).lines if frames[-1] == "[off-cpu: poll]"
        ]
        assert sum(polled_us) > 300_000, pid


def test_tasks_of_uvloop_wait_for_what_they_say(recorded: Recorded) -> None:
    for pid in recorded.pids:
        seen_us: dict[tuple[str, str], int] = {}
        for _, who, frames, us in recorded.folded.of_process(pid).lines:
            if who.startswith("task waits for "):
                seen_us[who, frames[-1]] = seen_us.get((who, frames[-1]), 0) + us
        assert set(seen_us) == {
            (f"task waits for {reason}", f"[await: {reason}]")
            for reason in ("sleep", "lock", "queue", "task", "socket")
        }
        assert min(seen_us.values()) > 1_500_000, seen_us
