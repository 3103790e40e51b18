"""What was seen from user space of threads that slept, and what is known of a process meanwhile."""

from __future__ import annotations

import os
import threading
import time
from typing import cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi.dtypes import STRUCTS
from bpfprof.capture.process import Process, State
from bpfprof.capture.sleeping import Sleep, Sleeps, stacks_now, task_state
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.threads import Threads
from bpfprof.cpython.code_objects import CodeObject
from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.tasks import ThreadStatus

UNFINISHED, WHOLE, OTHER = 5, 6, 7


def seen(*looks: tuple[int, int]) -> Sleeps:
    """(time, stack) of thread 4, the last look first."""
    sleeps = Sleeps(cast(Threads, None), StackTable(unfinished={UNFINISHED}), None)
    sleeps.seen = {4: tuple(Sleep(time_ns, stack, 230, (0, 0, 0)) for time_ns, stack in looks)}
    return sleeps


@pytest.mark.parametrize(
    ("looks", "stack"),
    [
        (((80, WHOLE), (70, UNFINISHED)), WHOLE),
        (((80, UNFINISHED), (70, WHOLE)), WHOLE),
        (((80, 0), (70, UNFINISHED)), 0),  # nothing whole: what was seen last
        (((120, OTHER), (80, WHOLE)), WHOLE),  # the next sleep was seen, too
        (((120, OTHER), (40, OTHER)), None),
        ((), None),
    ],
)
def test_a_whole_stack_of_the_same_sleep_is_taken(looks: tuple[tuple[int, int], ...], stack: int | None) -> None:
    sleep = seen(*looks).at(4, 60, 100)
    assert (sleep.stack if sleep else None) == stack
    assert seen(*looks).at(5, 60, 100) is None


def this_process() -> Process:
    process = Process(0, Pid(os.getpid()), "python")
    process.open_memory()
    found = find_interpreter(process.pid, process.memory)
    if not isinstance(found, Interpreter):
        pytest.skip(f"these tests run on a supported CPython: {found.reason}")
    process.interpreter = found
    return process


def test_the_stacks_of_a_process_now() -> None:
    """Of this one: a thread that waits, and this one, which runs."""
    process, asked = this_process(), threading.Event()
    thread = threading.Thread(target=asked.wait, daemon=True)
    thread.start()
    is_there, end_s = False, time.monotonic() + 60
    try:
        while not is_there:
            found = {stack.tid: stack for stack in stacks_now(process, None)}
            waiting, running = found[Tid(thread.native_id or 0)], found[Tid(threading.get_native_id())]
            codes = [process.read_code(address) for address, _, _ in waiting.frames]
            names = [code.name for code in codes if isinstance(code, CodeObject)]
            # One that wants the GIL sleeps, too, on its way to the wait.
            is_there = names[:2] == ["wait", "wait"] and bool(waiting.call) and waiting.status.run_state == "S"
            assert is_there or time.monotonic() < end_s, names
    finally:
        asked.set()
        thread.join()
        process.close()
    assert names[-1] == "_bootstrap"
    assert waiting.python_status == abi.Status["BP_OK"]
    assert running.status.run_state == "R" and running.frames


def test_a_program_that_was_just_begun_is_not_taken_for_the_one_before() -> None:
    """Its stacks are those of an interpreter that is not known yet, and not of none."""
    process = this_process()

    def flags() -> int:
        return int(np.frombuffer(process.kernel_record(True, None), STRUCTS["bp_process"], 1)["flags"][0])

    known, python = (int(abi.ProcessFlags[f"BP_PROCESS_{name}"]) for name in ("KNOWN", "PYTHON"))
    assert flags() & (known | python) == known | python
    process.state = State.CHANGING
    assert flags() & (known | python) == 0
    process.close()


def test_a_thread_that_has_ended_is_forgotten() -> None:
    sleeps = seen((80, WHOLE))
    sleeps.forget([5])
    assert sleeps.at(4, 60, 100) is not None
    sleeps.forget([4])
    assert not sleeps.seen


@pytest.mark.parametrize(
    ("state", "freezer", "function", "is_stopped"),
    [
        ("S", "", "get_signal", False),
        ("S", "FROZEN", "do_wait", True),
        ("D", "FROZEN", "kernel_clone", True),  # of vfork()
        ("S", "FREEZING", "get_signal", True),
        ("D", "FREEZING", "__refrigerator", True),
        ("D", "FREEZING", "do_sigtimedwait.isra.0", True),
        ("S", "FREEZING", "hrtimer_nanosleep", False),
        ("D", "FREEZING", "request_wait_answer", False),
        ("R", "FREEZING", "get_signal", False),
        ("S", "FREEZING", "0", False),
    ],
)
def test_in_a_group_that_is_frozen_in_part_the_kernel_says_who_is_stopped(
    state: str, freezer: str, function: str, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "waits_in", lambda _pid, _tid: function)
    assert (task_state(Pid(1), Tid(1), ThreadStatus(state, 0, 0, (1,)), freezer) == 4) == is_stopped
