"""The CPython layers against real interpreters: those under ~/.pyenv and the system's python3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpfprof.cpython.code_objects import CodeObject, read_code_object
from bpfprof.cpython.detect import Interpreter, NotPython, find_interpreter
from bpfprof.cpython.layouts_dynamic import SUPPORTED_VERSIONS
from bpfprof.cpython.line_tables import LineTable
from bpfprof.cpython.thread_state import ThreadStateRef, read_thread_states, walk_frames
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.reader import reader
from bpfprof.proc.tasks import list_threads
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.interpreters import PYTHONS, PYTHONS_2, minor
from tests.integration.recorded import running

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


SUPPORTED = [name for name in PYTHONS if minor(name) in SUPPORTED_VERSIONS]
needs_pythons = pytest.mark.skipif(not SUPPORTED, reason="no CPython 3.6 to 3.15 under ~/.pyenv/versions or /usr/bin")

TARGET = '''
import json, os, sys, threading, time

read_end, write_end = os.pipe()
lock = threading.Lock()
lock.acquire()


class Größe:
    def 函数(self, depth):
        if depth:
            return (
                self
                .函数(depth - 1)
            )
        return self.blocked_in_sleep()

    def blocked_in_sleep(self):
        name = None

        def inner(
            seconds,
        ):
            nonlocal name
            name = seconds
            time.sleep(  # blocks
                name  # blocks there before 3.8
            )

        inner(3600)


def from_c(value):
    return sorted([3, 1], key=lambda item: waits_for_lock(item))


def waits_for_lock(item):
    try:
        raise ValueError
    except ValueError:
        with lock:  # blocks
            pass


def generator():
    yield 1
    yield from delegate()


def delegate():
    os.read(read_end, 1)  # blocks
    yield 2


class Callable:
    def __call__(self, function):
        return function()


def \U00010400astral():
    for _ in generator():
        pass


def through_descriptors():
    return Callable()(\U00010400astral)


def deep(depth):
    if depth == 0:
        list(map(from_c, [0]))
    deep(depth - 1)


WORKERS = [
    (lambda: Größe().函数(40), "inner"),
    (lambda: from_c(0), "waits_for_lock"),
    (through_descriptors, "delegate"),
    (lambda: deep(300), "waits_for_lock"),
]
threads = [threading.Thread(target=work, daemon=True) for work, _ in WORKERS]
for thread in threads:
    thread.start()


def stack(frame):
    out = []
    while frame:
        code = frame.f_code
        out.append([getattr(code, "co_qualname", code.co_name), code.co_name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return out


def settled():
    """Stacks of the workers once each stands on the line it blocks on."""
    with open(__file__, encoding="utf-8") as source:
        ends = ("# blocks\\n", "# blocks there before 3.8\\n")[: 1 + (sys.version_info < (3, 8))]
        lines = [number for number, line in enumerate(source, 1) if line.endswith(ends)]
    while True:
        frames = sys._current_frames()
        stacks = [stack(frames[thread.ident]) for thread in threads if thread.ident in frames]
        if [s[0][1] for s in stacks] == [name for _, name in WORKERS] and all(s[0][3] in lines for s in stacks):
            return stacks
        time.sleep(0)


truth = {thread.ident: s for thread, s in zip(threads, settled())}
print(json.dumps({"main": threading.get_ident(), "threads": truth}), flush=True)
sys.stdin.readline()
'''


@dataclass
class Target:
    """`truth`: stacks by what pthread_self() returns, `main` that of the main thread."""

    name: str
    pid: Pid
    truth: dict[int, list[list[Any]]]
    main: int


@pytest.fixture(scope="module", params=SUPPORTED)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    script = tmp_path_factory.mktemp("цель") / "größe_函数.py"
    script.write_text(TARGET, encoding="utf-8")
    command = [PYTHONS[request.param], "-I", "-X", "utf8", str(script)]
    with running(*command) as process:
        ready = json.loads(process.first_line)
        truth = {int(ident): stack for ident, stack in ready["threads"].items()}
        wait_until_asleep(process.pid)  # on the line it blocks on a thread may still have the GIL, or want it
        yield Target(request.param, Pid(process.pid), truth, ready["main"])


def _found(target: Target) -> Interpreter:
    interpreter = find_interpreter(target.pid)
    assert isinstance(interpreter, Interpreter), interpreter
    return interpreter


def _names_and_lines(
    memory: ProcessMemory, interpreter: Interpreter, thread: ThreadStateRef
) -> tuple[list[list[Any]], int]:
    """The stack as the target prints its own, and the number of entry marks."""
    walk = walk_frames(memory, interpreter.layout, thread.address)
    assert walk.complete
    stack = []
    for frame in walk.frames:
        if frame[2] >= interpreter.layout.entry_marks_from and not interpreter.layout.shim_is_python:
            continue  # it only marks where C called into the interpreter
        code = read_code_object(memory, interpreter.layout, frame[0], interpreter.code_type_address)
        assert isinstance(code, CodeObject), code
        table = LineTable.decode(interpreter.layout.version, code.linetable, code.first_line)
        stack.append([code.qualname, code.name, code.filename, table.line(frame[1] - code.code_start)])
    return stack, sum(frame[2] >= interpreter.layout.entry_marks_from for frame in walk.frames)


def test_the_interpreter_is_found(target: Target) -> None:
    interpreter = _found(target)
    assert interpreter.layout.version == minor(target.name)
    if target.name.startswith("pyenv"):
        assert interpreter.version_text == target.name.partition("-")[2]
    assert interpreter.code_type_address
    with ProcessMemory(target.pid) as memory:
        states = {
            thread.address for thread in read_thread_states(memory, interpreter.layout, interpreter.runtime_address)
        }
        if interpreter.gil.current:  # all wait, so no thread has it
            assert memory.read_u64(interpreter.gil.current) == 0
            assert interpreter.gil.size and interpreter.gil.switch[1]
            return
        # An interval of 5000 us and a held flag of 0 or 1 are what a GIL begins with, pycore_gil.h.
        assert memory.read_u64(interpreter.gil.address) == 5000
        assert memory.read(interpreter.gil.address + interpreter.layout.gil_locked, 4) in (bytes(4), b"\1\0\0\0")
        assert memory.read_pointer(interpreter.gil.address + interpreter.layout.gil_last_holder) in states


def test_stacks_are_those_the_target_sees(target: Target) -> None:
    interpreter = _found(target)
    with ProcessMemory(target.pid) as memory:
        threads = {
            thread.pthread_id: thread
            for thread in read_thread_states(memory, interpreter.layout, interpreter.runtime_address)
        }
        assert threads.keys() == {target.main, *target.truth}
        assert threads[target.main].native_thread_id == target.pid
        assert {thread.native_thread_id for thread in threads.values()} == set(list_threads(target.pid))
        for ident, expected in target.truth.items():
            stack, entry_count = _names_and_lines(memory, interpreter, threads[ident])
            assert stack == expected
            assert entry_count >= 1
        main_stack, _ = _names_and_lines(memory, interpreter, threads[target.main])
        assert [frame[0] for frame in main_stack][-1] == "<module>"


def test_c_boundaries_are_marked(target: Target) -> None:
    """Each call from C into Python is one more call of the evaluation function."""
    interpreter = _found(target)
    counts = {}
    with ProcessMemory(target.pid) as memory:
        for thread in read_thread_states(memory, interpreter.layout, interpreter.runtime_address):
            if thread.pthread_id in target.truth:
                _, counts[thread.pthread_id] = _names_and_lines(memory, interpreter, thread)
    by_worker = [counts[ident] for ident in target.truth]
    if interpreter.layout.lasti_bytes:  # each Python call too
        assert by_worker == [len(stack) for stack in target.truth.values()]
        return
    # The first worker only has what threading.py makes; the second adds sorted(), the fourth map() and sorted().
    assert by_worker[1] - by_worker[0] == 1 and by_worker[3] - by_worker[0] == 2
    assert by_worker[2] >= by_worker[0]


@pytest.mark.second_tier
def test_it_is_quick(target: Target) -> None:
    """By CPU time, also that of the child which reads: on a busy machine each of its answers comes late."""

    def cpu_s() -> float:
        return time.process_time() + reader().cpu_s()

    find_interpreter(target.pid)
    times = []
    for _ in range(10):
        started_s = cpu_s()
        find_interpreter(target.pid)
        times.append(cpu_s() - started_s)
    print(f"{min(times) * 1000:.1f} ms")
    assert min(times) < 0.025


OTHERS = {name: path for name, path in {**PYTHONS, **PYTHONS_2}.items() if name not in SUPPORTED}


@pytest.mark.parametrize("name", OTHERS)
def test_other_versions_are_named(name: str) -> None:
    script = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()"
    with running(OTHERS[name], "-c", script) as process:
        found = find_interpreter(Pid(process.pid))
    assert isinstance(found, NotPython) and not found.retry
    assert found.version == minor(name)
    assert found.reason == "CPython {}.{} is not supported yet".format(*minor(name))


def test_a_process_without_python() -> None:
    age_s = 9.0
    while age_s > 1.9:  # a busy machine may take longer to look
        born_s = time.monotonic()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            found = find_interpreter(Pid(process.pid))
            process.kill()
        age_s = time.monotonic() - born_s
    assert isinstance(found, NotPython)
    assert found.may_load_one  # it is younger than two seconds and may still be loading


@needs_pythons
def test_an_interpreter_that_starts_is_found_in_the_end() -> None:
    """From the moment of the exec on, each answer is either final or says that it may change."""
    command = [PYTHONS[SUPPORTED[-1]], "-c", "import sys; sys.stdin.readline()"]
    deadline, found = time.monotonic() + 60, None
    while not isinstance(found, Interpreter):
        born_s, may_change = time.monotonic(), True
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            while may_change:
                assert time.monotonic() < deadline
                found = find_interpreter(Pid(process.pid))
                may_change = isinstance(found, NotPython) and (found.retry or found.may_load_one)
            process.kill()
        # One that had no CPU for two seconds is taken for a program that has no Python; then another is begun.
        assert isinstance(found, Interpreter) or time.monotonic() - born_s > 1.9, found


@needs_pythons
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("taken", [7, 40])
def test_a_thread_specific_key_that_is_not_the_first(taken: int, tmp_path: Path) -> None:
    """A library that is loaded before Python starts takes the first keys."""
    source, library = tmp_path / "keys.c", tmp_path / "keys.so"
    source.write_text(
        "#include <pthread.h>\n__attribute__((constructor)) static void take(void)"
        f"{{ pthread_key_t key; for (int i = 0; i < {taken}; i++) pthread_key_create(&key, 0); }}"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    script = "print('ready', flush=True); import sys; sys.stdin.readline()"
    for name in (name for name in SUPPORTED if minor(name) < (3, 15)):
        with running(PYTHONS[name], "-c", script, env={"LD_PRELOAD": str(library)}) as process:
            found = find_interpreter(Pid(process.pid))
        assert isinstance(found, Interpreter), found
        # Blocks of 32 keys: the first in struct pthread, pointers to the others behind it.
        *blocks, entry = found.thread_slot.offsets
        key = (entry - 8) // 16 + 4 * (blocks[0] - 0x510) if blocks else (entry - 0x318) // 16
        assert taken <= key < taken + 4
