"""C programs that embed CPython: where threads keep their thread states, and that all their stacks are merged."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import pytest

from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.cpython.thread_state import read_thread_states
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    BPFPROF,
    PYTHON_FRAME,
    Folded,
    collapsed,
    completed,
    needs_root,
    program,
    running,
)

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("cc") is None, reason="the program is compiled with cc")]
THREADS = 4
# Run by the Python that is to be embedded: its library is where it says, and the compiler of sid's is beside it.
BUILD = """
import os, subprocess, sys, sysconfig
source, program, is_late, keys = sys.argv[1:]
folder, name = sysconfig.get_config_vars("LIBDIR", "INSTSONAME")
path = os.path.join(folder, name)
path = path if os.path.exists(path) else name
linked = ["-Wl,--no-as-needed", "-L" + folder, "-Wl,-rpath," + folder, "-l:" + name]
words = ["cc", "-g", "-pthread", "-o", program, source, *([] if is_late == "late" else linked), "-ldl"]
subprocess.run(words, check=True)
os.execv(program, [program, path if is_late == "late" else "", keys])
"""
# The key of the thread state is one of the first 32, which are in the thread's own block, or behind them.
CASES = [
    ("3.8", "late", 0),
    ("3.11", "linked", 40),
    ("3.13", "late", 0),
    ("sid-3.15", "linked", 0),
    ("sid-3.15", "late", 0),
]


@dataclass
class Embedding:
    """One recording. `own`, `listed`: thread states as the threads keep them, and as the interpreter lists them."""

    folded: Folded
    tids: dict[str, int]
    own: set[int]
    listed: set[int]
    is_dynamic: bool
    name: str
    how: str


@pytest.fixture(scope="module", params=CASES, ids=["-".join(map(str, case)) for case in CASES])
def embedding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedding:
    name, how, keys = request.param
    if name not in ALL_INTERPRETERS:
        pytest.skip(f"no CPython {name}" + (" (`python tests/sid.py` makes it)" if name.startswith("sid") else ""))
    folder = tmp_path_factory.mktemp("embeds")
    words = [program("embeds.c"), str(folder / "embeds"), how, str(keys)]
    with running(ALL_INTERPRETERS[name], "-c", BUILD, *words) as target:
        found = find_interpreter(Pid(target.pid))
        assert isinstance(found, Interpreter), found
        with ProcessMemory(Pid(target.pid)) as memory:
            # `attaching` has one now and then only: those that are there twice.
            threads = read_thread_states(memory, found.layout, found.runtime_address)
            own = {found.thread_slot.read(memory, thread.pthread_id) for thread in threads}
        path = folder / "x.bpfprof"
        completed([*BPFPROF, "record", "-p", str(target.pid), "-d", "2", "-o", str(path)], 0)
    listed = {thread.address for thread in threads}
    is_dynamic = found.thread_slot.module > 0
    return Embedding(collapsed(path), json.loads(target.first_line), own, listed, is_dynamic, name, how)


def test_threads_keep_what_the_interpreter_lists(embedding: Embedding) -> None:
    """The thread that attaches and detaches may have done either while the others were read."""
    assert len(embedding.own & embedding.listed) >= THREADS - 1
    # Loaded late, each thread has its variables somewhere else.
    assert embedding.is_dynamic == (embedding.how == "late" and embedding.name == "sid-3.15")


def test_a_thread_of_c_that_entered_python(embedding: Embedding) -> None:
    """All it does is below both its functions, in their order."""
    of_thread = embedding.folded.of_thread(embedding.tids["attached"])
    for _, _, frames, _ in of_thread.lines:
        names = [frame.rpartition(" (")[0] for frame in frames if not frame.startswith("[")]
        if "called_again" in names:
            assert names.index("attached") < names.index("called_again"), frames
    assert of_thread.total_us("called_again") > 0.95 * of_thread.total_us()


def test_a_thread_that_enters_and_leaves(embedding: Embedding) -> None:
    """Python frames only while it is inside, the right ones; C frames always."""
    of_thread = embedding.folded.of_thread(embedding.tids["attaching"])
    total_us = of_thread.total_us()
    for _, _, frames, _ in of_thread.lines:
        names = [frame.rpartition(" (")[0] for frame in frames]
        if "between" in names:
            assert not any(PYTHON_FRAME.search(frame) for frame in frames), frames
        elif "called_now_and_then" in names:
            assert names.index("attaching") < names.index("called_now_and_then"), frames
    assert of_thread.total_us("between") > 0.2 * total_us
    assert of_thread.total_us("called_now_and_then") > 0.2 * total_us
    assert of_thread.total_us("attaching") > 0.97 * total_us


def test_threads_of_python(embedding: Embedding) -> None:
    assert embedding.folded.total_us("beat")
    whole = sum(weight for *_, frames, weight in embedding.folded.lines if "[truncated" not in str(frames))
    assert whole > 0.98 * embedding.folded.total_us()
