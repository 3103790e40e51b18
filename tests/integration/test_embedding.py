"""C programs that embed CPython: where threads keep their thread states, and that all their stacks are merged."""

from __future__ import annotations

import json
import shutil
import time
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
WAIT_FOR_THREADS_S = 60.0
NOT_TAKEN = ("[not sampled]", "[short waits]", "[truncated: stack not taken]")
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
    words = [program("embedded.py"), how, str(folder), program("embeds.c"), str(keys)]
    with running(ALL_INTERPRETERS[name], *words) as target:
        # One of its threads comes and goes while it is looked at, which one look in ten or fewer does not survive, and
        # on a busy machine more of them; a recording looks again, too.
        found, end = find_interpreter(Pid(target.pid)), time.monotonic() + WAIT_FOR_THREADS_S
        while not isinstance(found, Interpreter):
            assert time.monotonic() < end, found
            found = find_interpreter(Pid(target.pid))
        with ProcessMemory(Pid(target.pid)) as memory:
            # `attaching` has a thread state for half of its time only, and none for as long as it has no CPU meanwhile.
            end = time.monotonic() + WAIT_FOR_THREADS_S
            threads = read_thread_states(memory, found.layout, found.runtime_address)
            while len(threads) < THREADS and time.monotonic() < end:
                threads = read_thread_states(memory, found.layout, found.runtime_address)
            assert len(threads) >= THREADS
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


def taken(folded: Folded) -> Folded:
    """Without the time of which no stack was taken: on a busy machine some waits for a CPU."""
    found = Folded([line for line in folded.lines if line[2][0] not in NOT_TAKEN])
    assert found.total_us() > 0.8 * folded.total_us()
    return found


def test_a_thread_of_c_that_entered_python(embedding: Embedding) -> None:
    """All it does is below both its functions, in their order."""
    of_thread = taken(embedding.folded.of_thread(embedding.tids["attached"]))
    for _, _, frames, _ in of_thread.lines:
        names = [frame.rpartition(" (")[0] for frame in frames if not frame.startswith("[")]
        if "called_again" in names:
            assert names.index("attached") < names.index("called_again"), frames
    assert of_thread.total_us("called_again") > 0.95 * of_thread.total_us()


def test_a_thread_that_enters_and_leaves(embedding: Embedding) -> None:
    """Python frames only while it is inside, the right ones; C frames always."""
    of_thread = taken(embedding.folded.of_thread(embedding.tids["attaching"]))
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
    found = taken(embedding.folded)
    whole = sum(weight for *_, frames, weight in found.lines if "[truncated" not in str(frames))
    assert whole > 0.98 * found.total_us(), {frames[0]: weight for *_, frames, weight in found.lines}
