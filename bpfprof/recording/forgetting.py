"""Giving up what is in the tables of a recording that goes on, and of threads and processes that ended long ago.

Rows keep their numbers: what was given up is a row of which nothing is known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import takewhile

import numpy as np

from bpfprof import array_types as npt
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedCode, RecordedProcess, RecordedThread, RecordedWaker

_LATE_NS = 60_000_000_000  # after a thread ended: until then it may still get a name, or turn out to have ended a wait
_THREAD, _WAKER, _PROCESS, _CODE = (
    RecordedThread(),
    RecordedWaker(),
    RecordedProcess(),
    RecordedCode(0, "", "", 0, "", b""),
)
_MORE, _FEW_STACKS = 0.25, 1000  # times as many new stacks as were kept the last time: frames are moved seldom

Int64Array = npt.NDArray[np.int64]


class _Places:
    """Which rows of a growing table are of what: by owner the places of its rows."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        self._count = 0

    def take(self, owners: Iterable[int], count: int) -> None:
        """owners: of those rows that came since, -1: none; count: of all rows."""
        for place, owner in enumerate(owners, self._count):
            if owner >= 0:
                self._of.setdefault(owner, []).append(place)
        self._count = count

    @property
    def count(self) -> int:
        """Of rows that were taken."""
        return self._count

    def pop(self, owner: int) -> list[int]:
        return self._of.pop(owner, [])


class Forgetting:
    """Of one recording. A program that starts a thread for each request has millions of them in a day, and a host may
    have as many processes."""

    def __init__(self, tables: Recording) -> None:
        self._tables = tables
        self._ended: dict[int, int] = {}  # threads that are not forgotten -> end of the part in which they ended
        self._wakers, self._codes = _Places(), _Places()  # by thread; by process
        self._alive: Counter[int] = Counter()  # threads of processes that are not forgotten
        self._thread_count = 0  # those that are in that
        self._without_main = set[int]()  # processes whose main thread is forgotten: others may be there, and unseen
        self._gone: list[int] = []  # processes whose stacks have frames still
        self._stacks_then = self._stacks_kept = 0  # the last time: all, and those that have frames still
        self._used = deque[tuple[int, Int64Array]]()  # the end of each part that is kept, and its stacks
        self._may_come: Int64Array = np.ones(1, np.int64)  # numbers of stacks, and from the last one on all

    def go_on(self, threads: npt.NDArray[np.unsignedinteger]) -> None:
        """They do, after an execve, or are zombies that are told to have ended again."""
        for thread in threads.tolist() if self._ended else ():
            self._ended.pop(thread, None)

    def end(self, threads: npt.NDArray[np.unsignedinteger], until_ns: int) -> None:
        """They ended in the part that ends then (CLOCK_MONOTONIC)."""
        self._ended.update(dict.fromkeys(threads.tolist(), until_ns))

    def use(self, stacks: Int64Array, until_ns: int) -> None:
        """The part that ends then has these."""
        self._used.append((until_ns, stacks))

    def keep(self, stacks: npt.NDArray[np.unsignedinteger]) -> None:
        """Rows to come may have these, and from the last one on all."""
        self._may_come = stacks.astype(np.int64)

    def forget(self, before_ns: int, open_stacks: Callable[[], Int64Array]) -> None:
        """Gives up threads that had ended long before then, and processes of which no thread is left.

        And stacks that do not come any more: no part has them that ends later, nor rows since (`open_stacks`).
        """
        tables = self._tables
        self._wakers.take((each.thread - 1 for each in tables.wakers[self._wakers.count :]), len(tables.wakers))
        self._codes.take((each.process for each in tables.codes[self._codes.count :]), len(tables.codes))
        self._alive.update(thread.process for thread in tables.threads[self._thread_count :])
        self._thread_count = len(tables.threads)
        for thread, _ in [*takewhile(lambda ended: ended[1] + _LATE_NS <= before_ns, self._ended.items())]:
            del self._ended[thread]
            process = tables.threads[thread].process
            if tables.threads[thread].tid == tables.processes[process].pid:
                self._without_main.add(process)
            tables.threads[thread] = _THREAD
            for place in self._wakers.pop(thread):
                tables.wakers[place] = _WAKER
            self._alive[process] -= 1
            if not self._alive[process] and process in self._without_main:
                self._without_main.remove(process)
                del self._alive[process]
                self._forget_process(process)
        while self._used and self._used[0][0] <= before_ns:
            self._used.popleft()
        if len(tables.stacks) - self._stacks_then > _MORE * self._stacks_kept + _FEW_STACKS:
            self._forget_stacks(open_stacks())

    def _forget_stacks(self, open_stacks: Int64Array) -> None:
        stacks = self._tables.stacks
        is_kept = np.zeros(len(stacks) + 1, np.bool_)  # by number
        for numbers in (self._may_come[:-1], open_stacks, *(of_part for _, of_part in self._used)):
            is_kept[numbers[numbers <= len(stacks)]] = True  # others are to be written still
        is_kept[self._may_come[-1] :] = True
        is_gone = ~is_kept[1:] | np.isin(stacks["process"], self._gone)
        self._gone, self._stacks_then, self._stacks_kept = [], len(stacks), len(stacks) - int(is_gone.sum())
        self._tables.give_up_frames(is_gone)

    def _forget_process(self, process: int) -> None:
        tables = self._tables
        tables.processes[process] = _PROCESS
        for place in self._codes.pop(process):
            tables.codes[place] = _CODE
        self._gone.append(process)
