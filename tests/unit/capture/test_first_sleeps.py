"""What was seen from user space of threads that slept, and what is known of a process meanwhile."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi.dtypes import STRUCTS
from bpfprof.capture.codes import ProcessCodes
from bpfprof.capture.first_sleeps import FirstSleep, FirstSleeps, SleeperTable
from bpfprof.capture.process import TrackedProcess, kernel_record
from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory

UNFINISHED, WHOLE, OTHER = 5, 6, 7
TABLE = cast(SleeperTable, SimpleNamespace(is_whole=lambda stack: stack != UNFINISHED))


def seen(*looks: tuple[int, int]) -> FirstSleeps:
    """(time, stack) of thread 4, the last look first."""
    return FirstSleeps({}, TABLE, {4: tuple(FirstSleep(time_ns, stack, 230, (0, 0, 0)) for time_ns, stack in looks)})


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


def test_a_program_that_was_just_begun_is_not_taken_for_the_one_before() -> None:
    """Its stacks are those of an interpreter that is not known yet, and not of none."""
    pid = Pid(os.getpid())
    process = TrackedProcess(0, pid, "python", [], ProcessCodes(0, None))
    with ProcessMemory(pid) as memory:
        found = find_interpreter(pid, memory)
    assert isinstance(found, Interpreter)
    process.interpreter = found

    def flags() -> int:
        return int(np.frombuffer(kernel_record(process, True, None), STRUCTS["bp_process"], 1)["flags"][0])

    known, python = (int(abi.ProcessFlags[f"BP_PROCESS_{name}"]) for name in ("KNOWN", "PYTHON"))
    assert flags() & (known | python) == known | python
    process.is_changing = True
    assert flags() & (known | python) == 0
