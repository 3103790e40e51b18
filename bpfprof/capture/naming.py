"""The names that Python programs give their threads, and themselves: a process in, names out, at a bounded cost.

The kernel tells of no change of a name. So each process is looked at now and then, soon after a thread was born, more
and more seldom while one of its threads has no name yet, and when the recording ends. What a look has cost decides when
the next may be.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from bpfprof.capture.process import Process
from bpfprof.capture.threads import Threads
from bpfprof.cpython.thread_names import MODULES_AT_A_TIME, ThreadNames
from bpfprof.cpython.thread_state import read_interpreters, read_thread_states
from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Tid
from bpfprof.proc import tasks
from bpfprof.proc.memory import MemoryAtOnce

_EVERY_S, _CALM_S = 5.0, 40.0  # the second one where no name changes
_AFTER_BIRTH_S = 0.005  # a thread says who it is when it has begun, and has had the GIL
_REST = 200  # times what a look took, for each process: names cost at most 0.5% of a CPU in all
_AHEAD_S = 0.05  # what looks at a process may take before it has rested for it: some 30, while its threads are born
_MAIN_THREAD = "MainThread"  # what `threading` calls it, when it is imported


@dataclass
class _Looks:
    """modules_s: when modules that a program has imported since may be looked at, whose names take longer.

    pause_s: until the next look.
    """

    names: ThreadNames
    pause_s: float = _AFTER_BIRTH_S
    due_s: float = 0.0
    earliest_s: float = 0.0
    modules_s: float = 0.0


class Naming:
    """`looks` are by the process's index in the recording. on_renamed: called with one that calls itself otherwise.

    every_s: between looks at a process none of whose threads is new; more while no name changes.
    """

    def __init__(self, threads: Threads, on_renamed: Callable[[Process], None]) -> None:
        self.every_s = _EVERY_S
        self._threads, self._on_renamed = threads, on_renamed
        self._looks: dict[int, _Looks] = {}

    def born(self, process: Process) -> None:
        """A process has a new thread."""
        looks = self._looks.get(process.index)
        if looks is not None:
            looks.pause_s = _AFTER_BIRTH_S
            looks.due_s = min(looks.due_s, max(looks.earliest_s, time.monotonic() + _AFTER_BIRTH_S))

    def forked(self, child: Process, parent: Process) -> None:
        """A child has what its parent has at the same addresses."""
        looks = self._looks.get(parent.index)
        if looks is not None and child.memory is not None:
            self._looks[child.index] = _Looks(looks.names.forked(child.memory))

    def forget(self, process: Process) -> None:
        """It is gone, or runs another program."""
        self._looks.pop(process.index, None)

    def look_at(self, processes: Iterable[Process], at_once: bool = False) -> None:
        """At those whose turn it is, or at all."""
        for process in processes:
            if process.interpreter is None or process.memory is None:
                continue
            looks = self._looks.get(process.index)
            if looks is None:
                looks = self._looks[process.index] = _Looks(ThreadNames(process.memory, process.interpreter.layout))
            if at_once or looks.due_s <= time.monotonic():
                was_found, begin_s = looks.names.is_found, time.thread_time()
                are_named, is_news = self._look_at_threads(process, looks.names)
                threads_s, now_s = time.thread_time(), time.monotonic()
                # What it took to find them is not taken again.
                if was_found or not looks.names.is_found:
                    begun_s = max(looks.earliest_s, now_s - self._rest_s(_AHEAD_S))
                    looks.earliest_s = begun_s + self._rest_s(threads_s - begin_s)
                most_s = max(self.every_s, _CALM_S) if are_named else self.every_s
                looks.pause_s = self.every_s if are_named and is_news else min(2 * looks.pause_s, most_s)
                looks.due_s = max(looks.earliest_s, now_s + looks.pause_s)
                if at_once or looks.modules_s <= now_s:
                    self._look_at_modules(process, looks.names, at_once)
                    looks.modules_s = now_s + self._rest_s(time.thread_time() - threads_s)
                looks.names.objects.memory = process.memory  # without what was read at once

    def _rest_s(self, look_s: float) -> float:
        """look_s: CPU time of this thread; the process that reads for it takes about as much."""
        return 2 * _REST * len(self._looks) * look_s

    def _look_at_threads(self, process: Process, reader: ThreadNames) -> tuple[bool, bool]:
        """Whether all that it has now are named; whether one has another name than before."""
        assert process.interpreter is not None and process.memory is not None
        runtime, layout = process.interpreter.runtime_address, reader.objects.layout
        before = set(read_thread_states(MemoryAtOnce(process.memory), layout, runtime))
        reader.objects.memory = MemoryAtOnce(process.memory)
        names = reader.read(read_interpreters(reader.objects.memory, layout, runtime))
        # A thread that was there all the time: else its name may be that of one before at the same address.
        states = before & set(read_thread_states(MemoryAtOnce(process.memory), layout, runtime))
        tids = _tids(process)
        unnamed, is_news = set(tids.values()), False
        for state in states:
            tid = tids.get(state.native_thread_id)
            name = names.get(state.pthread_id) or (_MAIN_THREAD if tid == int(process.pid) else "")
            if tid is not None and name:
                is_news |= self._threads.give_name(tid, name)
                unnamed.discard(tid)
        return not unnamed, is_news

    def _look_at_modules(self, process: Process, reader: ThreadNames, is_last: bool) -> None:
        assert process.interpreter is not None and process.memory is not None
        reader.objects.memory = memory = MemoryAtOnce(process.memory)
        interpreters = read_interpreters(memory, reader.objects.layout, process.interpreter.runtime_address)
        most = sys.maxsize if is_last else MODULES_AT_A_TIME
        name = reader.process_name(interpreters, most) or process.given_name
        if name != process.given_name:
            process.given_name = name
            self._on_renamed(process)


def _tids(process: Process) -> dict[int, Tid]:
    """Its threads, by the id that each has in its own pid namespace."""
    tids = tasks.list_threads(process.pid)
    if len(tasks.namespace_tids(process.pid, Tid(process.pid))) == 1:
        return {int(tid): tid for tid in tids}
    return {ids[-1]: tid for tid in tids if (ids := tasks.namespace_tids(process.pid, tid))}
