"""Threads in groups that have a bounded number of rows; one with very many waits in stretches of its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from bpfprof.account.threads import Int64Array, Threads
from bpfprof.dataclass import dataclass

_ROWS = 1 << 16  # of a group that has more than one thread
_STRETCH_WAITS = 1 << 17  # at most, of which three are in memory at a time: 200 to 300 bytes each
_WORTH = 1.5  # what is alike in two stretches is not one: of so many times as many waits a thread has them
_MOST_NS = 1 << 60


@dataclass(frozen=True)
class Group:
    """Threads that follow one another, or a stretch of one, from the end of a wait to the end of one.

    Arrays have an element for each thread: first_ns, last_ns: from when to when. ran_before_ns, ran_until_ns: how long
    it had been on a CPU then. open_stolen_ns: as of Threads, in the last stretch. wait_begin, sample_begin: the place
    of its first row, and one more for the end.
    """

    threads: range
    stretch: int  # 0: the first
    first_ns: Int64Array = field(compare=False)
    last_ns: Int64Array = field(compare=False)
    ran_before_ns: Int64Array = field(compare=False)
    ran_until_ns: Int64Array = field(compare=False)
    open_stolen_ns: Int64Array = field(compare=False)
    wait_begin: Int64Array = field(compare=False)
    sample_begin: Int64Array = field(compare=False)

    @property
    def places(self) -> slice:
        """Of arrays of all threads."""
        return slice(self.threads.start, self.threads.stop)

    @property
    def waits(self) -> slice:
        """The places of its rows of waits."""
        return slice(int(self.wait_begin[0]), int(self.wait_begin[-1]))

    @property
    def samples(self) -> slice:
        """The places of its samples."""
        return slice(int(self.sample_begin[0]), int(self.sample_begin[-1]))


def groups_of(threads: Threads) -> Iterator[list[Group]]:
    """All threads: each a group, or the stretches of a thread in their order."""
    for chosen in _ranges(threads):
        whole = _whole(threads, chosen)
        count = whole.waits.stop - whole.waits.start
        yield _stretches(threads, whole) if len(chosen) == 1 and count > _WORTH * _STRETCH_WAITS else [whole]


def _ranges(threads: Threads) -> Iterator[range]:
    rows = np.diff(threads.waits.begin) + np.diff(threads.samples.begin) + 1
    # Threads of a group are laid one after the other on one clock, which must not come to its end.
    most = max(1, _MOST_NS // max(1, threads.end_ns - threads.start_ns + 1))
    begin = held = ran_ns = 0
    for thread, (count, on_cpu_ns) in enumerate(zip(rows.tolist(), threads.on_cpu_ns.tolist())):
        is_full = held + count > _ROWS or thread - begin >= most or ran_ns + on_cpu_ns > _MOST_NS
        if is_full and thread > begin:
            yield range(begin, thread)
            begin, held, ran_ns = thread, 0, 0
        held, ran_ns = held + count, ran_ns + on_cpu_ns
    if begin < len(rows):
        yield range(begin, len(rows))


def _whole(threads: Threads, chosen: range) -> Group:
    own, borders = slice(chosen.start, chosen.stop), slice(chosen.start, chosen.stop + 1)
    return Group(
        chosen,
        0,
        threads.first_ns[own],
        threads.last_ns[own],
        np.zeros(len(chosen), np.int64),
        threads.on_cpu_ns[own],
        threads.open_stolen_ns[own],
        threads.waits.begin[borders],
        threads.samples.begin[borders],
    )


def _stretches(threads: Threads, whole: Group) -> list[Group]:
    waits, samples = whole.waits, whole.samples
    count = -(-(waits.stop - waits.start) // _STRETCH_WAITS)
    places = np.linspace(waits.start, waits.stop, count + 1).astype(np.int64)
    ended, ran = np.zeros((2, count - 1), np.int64)
    for number, (begin, end) in enumerate(zip(places[:-2].tolist(), places[1:-1].tolist())):
        ended[number] = threads.waits.column("time_ns", slice(end - 1, end))[0]
        ran[number] = threads.waits.column("on_cpu_ns", slice(begin, end)).max().astype(np.int64)
    ended = np.maximum.accumulate(ended.clip(whole.first_ns, whole.last_ns))
    ran = np.maximum.accumulate(ran.clip(0, whole.ran_until_ns))
    borders_ns = np.concatenate([whole.first_ns, ended, whole.last_ns])
    ran_ns = np.concatenate([[0], ran, whole.ran_until_ns])
    of_samples = np.searchsorted(threads.samples.column("time_ns", samples).astype(np.int64), ended) + samples.start
    sampled = np.concatenate([[samples.start], of_samples, [samples.stop]])
    no_ns = np.zeros(1, np.int64)
    return [
        Group(
            whole.threads,
            number,
            borders_ns[number : number + 1],
            borders_ns[number + 1 : number + 2],
            ran_ns[number : number + 1],
            ran_ns[number + 1 : number + 2],
            whole.open_stolen_ns if number == count - 1 else no_ns,
            places[number : number + 2],
            sampled[number : number + 2],
        )
        for number in range(count)
    ]
