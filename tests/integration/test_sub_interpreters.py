"""Threads that run several interpreters: all frames in their order, and each GIL by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.recorded import (
    INTERPRETERS,
    PYTHON_FRAME,
    Folded,
    bpfprof,
    checked,
    collapsed,
    needs_root,
    program,
    running,
)

CHOSEN = {name: INTERPRETERS[name] for name in ("3.11", "3.12", "sid-3.15") if name in INTERPRETERS}
THREAD = ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run")
# For each thread its Python functions, root first; `<module>` is the text that an interpreter was given to run.
PATHS = {
    "MainThread": ("<module>", "main", "main_outside", "run", "<module>", "turn"),
    "worker": (*THREAD, "worker_outside", "run", "<module>", "turn"),
    "nested": (*THREAD, "nested_outside", "run", "<module>", "nest", "<module>", "turn"),
}

pytestmark = needs_root


@dataclass
class Recorded:
    version: str
    path: Path
    folded: Folded


@pytest.fixture(scope="module", params=list(CHOSEN))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    path = tmp_path_factory.mktemp("interpreters") / "x.bpfprof"
    with running(CHOSEN[request.param], program("interpreters.py")) as target:
        # Long enough for a thread to be without a CPU for a while as it begins, when nobody has seen who took the GIL.
        bpfprof("record", "-p", target.pid, "-r", 499, "-d", 3, "-o", path)
    return Recorded(request.param, path, collapsed(path))


def of_thread(folded: Folded, name: str) -> list[tuple[tuple[str, ...], str, int]]:
    """(Python functions, leaf, microseconds). A text that was run is freed at once: its frame may have no name."""
    found = []
    for _, thread, frames, us in folded.lines:
        if thread.startswith(f"thread {name} ("):
            marks = ["<module>" if frame.startswith("[") and "code object" in frame else frame for frame in frames]
            functions = [it.partition(" (")[0] for it in marks if it == "<module>" or PYTHON_FRAME.fullmatch(it)]
            found.append((tuple(functions), frames[-1], us))
    return found


@pytest.mark.parametrize("name", PATHS)
def test_busy_and_asleep_under_what_lets_it_run(recorded: Recorded, name: str) -> None:
    stacks = of_thread(recorded.folded, name)
    # Without what it waited for a CPU, which others on the machine decide.
    total, path = sum(us for _, leaf, us in stacks if leaf != "[runqueue]"), PATHS[name]
    busy = sum(us for functions, leaf, us in stacks if functions == (*path, "count") and not leaf.startswith("["))
    asleep = sum(us for functions, leaf, us in stacks if functions == (*path, "nap") and leaf == "[off-cpu: sleep]")
    assert busy > 0.03 * total and asleep > 0.2 * total
    assert not [it for it in stacks if "turn" in it[0] and it[0][: len(path)] != path]


def test_stacks_are_whole(recorded: Recorded) -> None:
    ended = {frames[0] for _, _, frames, _ in recorded.folded.lines if frames[0].startswith("[truncated")}
    assert ended <= {"[truncated: stack not taken]"}


def test_no_thread_waits_for_the_gil_of_another_interpreter(recorded: Recorded) -> None:
    """a0 and a1 wait for each other, as b0 and b1 do; 3.11 has one GIL, and the program not these threads."""
    text = checked(recorded.path).stdout
    waited = dict(re.findall(r"^([ab])0\.\.1 \(2 threads\): (.*(?:\n    .*)*)", text, re.MULTILINE))
    assert set(waited) == (set() if recorded.version.endswith("3.11") else {"a", "b"})
    for name, behind in waited.items():
        assert re.match(rf".*; held (?:>?9\d|100)% in hog \(<\w+>:\d+\) of {name}0\.\.1 \(2 threads\)", behind)
        assert set(re.findall(r"\) of (\S+)", behind)) == {f"{name}0..1"}
