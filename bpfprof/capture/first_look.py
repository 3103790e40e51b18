"""A whole machine looked at before it is recorded: where code is mapped, and where interpreters keep their frames.

It takes some ms for each process, and programs are compiled and loaded meanwhile. What was not looked at is looked at
when the kernel side meets it, and its first stacks say so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial

from bpfprof.code.background import URGENT
from bpfprof.code.maps import NativeCode
from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks

# How long functions are looked for on stacks: since the last one that was not known, if there was any, and at most, or
# where not all that were met are read by then somewhat longer. A look takes 3 ms. Where all are known from an earlier
# run, a few looks say so.
_NOTHING_NEW_S, _ALL_KNOWN_S, _MEETING_S, _LONGEST_S = 0.15, 0.03, 1.5, 3.0
_BETWEEN_S, _BESIDE_S = 0.003, 0.02  # between looks; while tables are made beside them


@dataclass
class FirstLook:
    """Of these processes, the busiest first: at the code of each, whose unwind tables take longest, then for Python."""

    _steps: Iterator[Callable[[], object]]
    _found: dict[Pid, tuple[tuple[int, ...], Interpreter]] = field(default_factory=dict)
    _without_runtime: dict[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def of(cls, code: NativeCode | None, pids: Iterable[Pid], at_python: bool) -> FirstLook:
        """One that has not begun. at_python: whether to look for interpreters, too."""
        order, steps = tasks.busiest_first(pids), list[Callable[[], object]]()
        look = cls(iter(steps))
        if code is not None:
            steps += [partial(code.look_at, pid) for pid in order]
        if at_python:
            steps += [partial(look._look_for_python, pid) for pid in order]
        return look

    def meet(self, code: NativeCode) -> None:
        """After all that, functions of large files, until stacks lead through no new ones or it takes long."""
        self._steps = itertools.chain(self._steps, _meetings(code))

    def go_on(self, until_s: float, goes_on: Callable[[], bool] = lambda: False) -> bool:
        """Until time.monotonic() is `until_s`, and for as long as `goes_on()`. Whether there is more to look at."""
        while time.monotonic() < until_s or goes_on():
            step = next(self._steps, None)
            if step is None:
                return False
            step()
        return True

    def interpreter(self, pid: Pid) -> Interpreter | None:
        """What was found in a process, if it still runs the same program."""
        program, found = self._found.pop(pid, ((), None))
        return found if program and program == tasks.running_program(pid) else None

    def _look_for_python(self, pid: Pid) -> None:
        program = tasks.running_program(pid)
        try:
            found = find_interpreter(pid, without_runtime=self._without_runtime)
        except TargetError:
            return
        if isinstance(found, Interpreter):
            self._found[pid] = program, found


def _meetings(code: NativeCode) -> Iterator[Callable[[], object]]:
    begin_s = new_s = time.monotonic()
    known = 0  # were not known before
    code.files.leaves_unmet = True

    def meet(pid: Pid) -> None:
        nonlocal new_s, known
        if known != (known := code.meet(pid)):
            code.files.background.add(URGENT, code.files.read_wanted)
        if code.files.background.open_count:
            new_s = time.monotonic()

    while code.files.has_large():
        for pid in list(code.map_of):
            lasts_s, is_busy = time.monotonic() - begin_s, code.files.background.open_count > 0
            is_over = lasts_s > _MEETING_S and not (is_busy and lasts_s < _LONGEST_S) and not code.files.unmade()
            if is_over or time.monotonic() > new_s + (_NOTHING_NEW_S if known else _ALL_KNOWN_S):
                return
            yield partial(meet, pid)
        yield partial(time.sleep, _BESIDE_S if code.files.background.open_count else _BETWEEN_S)
