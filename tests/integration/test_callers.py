"""Where the stacks of a process lead through, by the words on them: all that eu-stack (elfutils) finds is there."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest

from bpfprof.code.callers import callers
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_maps, read_stack_ranges
from tests.integration.eu_stack import eu_stacks, wait_until_asleep
from tests.integration.recorded import needs_root, running

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("eu-stack") is None, reason="needs eu-stack (elfutils)")]

PROGRAM = """
import sys, threading
def sleep(depth):
    if depth:
        return sorted([0, 1], key=lambda _: sleep(depth - 1))  # C between the functions of Python
    threading.Event().wait()
for depth in (0, 3, 20):
    threading.Thread(target=sleep, args=(depth,), daemon=True).start()
print(flush=True)
sleep(1)
"""


def test_every_frame_of_every_thread_is_among_them() -> None:
    with running(sys.executable, "-c", PROGRAM) as process:
        wait_until_asleep(process.pid)
        pid = Pid(process.pid)
        code = [mapping for mapping in read_maps(pid) if mapping.is_executable and mapping.is_file]
        # Addresses in a file are those in the process.
        rows = [(int(mapping.start), int(mapping.end), 0, number) for number, mapping in enumerate(code)]
        found = callers(pid, rows)
        stacks = eu_stacks(process.pid)
        ranges = read_stack_ranges(pid)
    assert len(stacks) == 4 and len(ranges) >= 4
    for number, (start, end, _, _) in enumerate(rows):
        theirs = {pc - 1 for stack in stacks.values() for pc in stack[1:] if start < pc <= end}
        own = found.get(number, np.zeros(0, np.int64)).tolist()
        assert theirs <= set(own) and all(start <= address < end for address in own), code[number].path
        assert own == sorted(set(own))
    assert sum(map(len, found.values())) > 20


def test_of_a_process_that_is_gone_there_are_none() -> None:
    assert callers(Pid(1 << 22), [(0x1000, 0x2000, 0, 1)]) == {}
