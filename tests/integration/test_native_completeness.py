"""How many stacks with native frames reach the start routine of their thread, in programs of many kinds."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfprof.model.ids import Pid
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    PYTHON,
    SOME_INTERPRETERS,
    cpu_s,
    let_run,
    needs_root,
    program,
    recording,
    running,
)
from tests.integration.whole_stacks import make_tables, reached, why_not_whole

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled with cc"),
    pytest.mark.skipif(
        not SOME_INTERPRETERS, reason="no CPython 3.11, 3.12, 3.13 or 3.15 under ~/.pyenv/versions or /usr/bin"
    ),
]
WINDOW_S = 4
LEAST_CPU_S = 0.8  # of each: a turn of call_chain.py is a wait, after 10 ms
RATE_HZ = 999
BAR = 99.5  # percent
PROGRAMS = ("extension.py", "library_callbacks.py", "call_order.py", "call_chain.py")
FORKING = "fork_exec.py"
OPTIONS = {"call_chain.py": ("--levels", "40")}
NUMPY_PROGRAMS = {"training loop": "training_loop.py", "OpenBLAS 2": "blas.py", "OpenBLAS 4": "blas.py"}


def read(path: Path) -> Recording:
    with open(path, "rb") as file:
        return read_recording(file)


def assert_whole(read_back: Recording, pid: int, name: str, bar: float = BAR) -> None:
    """Of the stacks that were taken: beyond 500 waits a second of a thread none are."""
    kinds = {"on CPU": read_back.samples, "off CPU": read_back.waits}
    found = {kind: reached(read_back, pid, rows) for kind, rows in kinds.items()}
    for kind, it in found.items():
        print(f"{name:32} {kind:8} {it.percent:6.2f} % of {it.count:6}  {dict(it.reasons.most_common(6))}")
    for kind, it in found.items():
        taken = it.count - it.reasons["not sampled"]
        assert taken >= 50, f"{name} {kind}: {taken} are too few to tell"
        assert 100 * it.whole >= bar * taken, f"{name} {kind}: {it}"


@dataclass
class Recorded:
    """Several programs in one recording: what each printed when it was ready, and its pid."""

    recording: Recording
    path: Path
    first_lines: dict[str, str]
    pids: dict[str, int]


def recorded(
    commands: dict[str, tuple[str, ...]], path: Path, env: dict[str, dict[str, str]] | None = None
) -> Recorded:
    """A recording of all of them at once."""
    with ExitStack() as stack:
        targets = {
            name: stack.enter_context(running(*command, env=(env or {}).get(name)))
            for name, command in commands.items()
        }
        for target in targets.values():
            make_tables(Pid(target.pid))
        pids = [word for target in targets.values() for word in ("-p", target.pid)]
        recorder = stack.enter_context(recording(*pids, "-r", RATE_HZ, "-o", path))
        ends_s = {target.pid: cpu_s(target.pid) + LEAST_CPU_S for target in targets.values()}
        time.sleep(WINDOW_S)  # the least length of the recording
        for name, target in targets.items():
            if name != FORKING:  # its children have the CPU time
                let_run(target.pid, ends_s[target.pid] - cpu_s(target.pid))
        done = recorder.end()
        assert done.returncode == 0, done.stderr
        lines, pids_of = ({name: it.first_line for name, it in targets.items()}, {n: t.pid for n, t in targets.items()})
    return Recorded(read(path), path, lines, pids_of)


@pytest.fixture(scope="module", params=list(SOME_INTERPRETERS))
def of_interpreter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    python = SOME_INTERPRETERS[request.param]
    path = tmp_path_factory.mktemp("native") / "x.bpfprof"
    names = (*PROGRAMS, FORKING)
    yield recorded({name: (python, program(name), *OPTIONS.get(name, ())) for name in names}, path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_callbacks_of_c(of_interpreter: Recorded, name: str) -> None:
    """A C extension without frame pointers, C libraries that call back, 40 nested calls of objects."""
    assert_whole(of_interpreter.recording, of_interpreter.pids[name], f"{name}")


def test_waits_for_a_child_to_exec(of_interpreter: Recorded) -> None:
    """subprocess.Popen waits in vfork(), which keeps its return address in a register."""
    read_back, pid = of_interpreter.recording, of_interpreter.pids[FORKING]
    source = StackSource(read_back, show_interpreter=True)
    reasons: Counter[str] = Counter()
    for row in read_back.waits:
        thread = read_back.threads[row["thread"]]
        if read_back.processes[thread.process].pid == pid and row["stack"]:
            frames = source.frames(int(row["stack"]), int(row["status"]))
            if frames and frames[-1].name in ("vfork", "__vfork"):
                reasons[why_not_whole(source, int(row["stack"]), int(row["status"]))] += 1
    print(f"waits in vfork: {dict(reasons)}")
    assert set(reasons) <= {""}


@pytest.fixture(scope="module")
def with_numpy(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if importlib.util.find_spec("numpy") is None:
        pytest.skip("needs numpy")
    commands = {name: (PYTHON, program(file)) for name, file in NUMPY_PROGRAMS.items()}
    env = {"OpenBLAS 2": {"OPENBLAS_NUM_THREADS": "2"}, "OpenBLAS 4": {"OPENBLAS_NUM_THREADS": "4"}}
    return recorded(commands, tmp_path_factory.mktemp("native") / "x.bpfprof", env)


@pytest.mark.parametrize("name", NUMPY_PROGRAMS)
def test_numpy(with_numpy: Recorded, name: str) -> None:
    """A training loop, and matrix products by threads of OpenBLAS."""
    assert_whole(with_numpy.recording, with_numpy.pids[name], name)
