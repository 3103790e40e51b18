"""Waits for a GIL: the slices that one wait is made of, and behind whom each thread waited.

A thread that wants the GIL sleeps for at most the switch interval (5 ms), asks for it and sleeps again (take_gil,
Python/ceval_gil.h in v3.6.15 and v3.11.7, Python/ceval_gil.c in v3.12.1): one wait comes as many rows.

Who holds the GIL is seen at moments only: when a wait begins (`holder` of its row), and when one ends that no timer
ended, for then its thread was given the GIL. From one such moment to the next of the same GIL the holder is taken to be
the same. A thread that gave the GIL away because it was asked to waits until another has it (drop_gil, the same files).
That other one ends the wait, and nobody but it has the GIL meanwhile. So it is with a wait for the GIL's mutex: who has
that is about to take the GIL or to give it away, and can be off the CPU for many milliseconds before it does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.holding import Holders, held_parts, holders_of, most_whole
from bpfprof.account.threads import Int64Array
from bpfprof.dataclass import dataclass
from bpfprof.model.rows import FiledRows, one_after_another, out_of_memory, picked
from bpfprof.model.samples import WakerKind
from bpfprof.recording.contents import Recording

Bools = npt.NDArray[np.bool_]
GilWaits = npt.NDArray[np.void]

_ROWS_TOGETHER = 1 << 14  # that are cut at a time: a thread has few or many
_GIL_BYTES = 256  # futexes nearer to each other than this are of one GIL: struct _gil_runtime_state has 208 bytes
_BETWEEN_NS = 100_000  # a thread that ran for longer than this between two waits had the GIL
_GAP_NS = 1_000_000  # and one that is not seen for longer may have had it
# The default switch interval is 5 ms; a timer is never early, but the sleep may begin a moment after it was set.
_TIMER_NS = 4_900_000
# futex(2) without its options. By it glibc 2.36 waits for a mutex (__lll_lock_wait, nptl/lowlevellock.c),
# and for a condition by FUTEX_WAIT_BITSET (__futex_abstimed_wait_common, nptl/futex-internal.c).
_FUTEX_COMMAND, _FUTEX_WAIT = 0x7F, 0  # include/uapi/linux/futex.h

# Of a row of a wait for a GIL: its place, from when and until when it was blocked, and fields of the row.
GIL_WAIT_DTYPE = np.dtype(
    [
        *(("place", "<i8"), ("begin_ns", "<i8"), ("woken_ns", "<i8")),
        *(("time_ns", "<u8"), ("on_cpu_ns", "<u8"), ("stolen_ns", "<u8"), ("args", "<u8", (2,))),
        *(("thread", "<u4"), ("stack", "<u4"), ("waker", "<u4"), ("waker_stack", "<u4")),
        *(("holder", "<u4"), ("holder_stack", "<u4"), ("waker_kind", "u1")),
    ]
)
_OF_ROWS = ("time_ns", "on_cpu_ns", "stolen_ns", "thread", "stack", "waker", "waker_stack")
_OF_HOLDERS = ("holder", "holder_stack")

# A part of a row's blocked time in which one thread had the GIL; sorted by place and start_ns, without gap.
# place: of the row; holder: index of the thread + 1, 0: not known; stack: where it was, 0: not known.
HELD_DTYPE = np.dtype([("place", "<i8"), ("start_ns", "<i8"), ("ns", "<i8"), ("holder", "<u4"), ("stack", "<u4")])


@dataclass(frozen=True)
class _GilRows:
    """Rows of waits for a GIL, in the order of places; all but is_first as columns."""

    place: Int64Array
    thread: Int64Array
    gil: Int64Array  # a number for each GIL
    begin_ns: Int64Array
    woken_ns: Int64Array
    given_to: Int64Array  # the thread that the end of the row tells to have the GIL; -1: it tells nothing
    given_stack: Int64Array  # and its stack then, 0: not known
    given_ns: Int64Array  # from when on
    is_first: Bools  # begins a wait


def gil_waits(rows: Columns, place: Int64Array, begin: Int64Array, woken: Int64Array) -> GilWaits:
    """GIL_WAIT_DTYPE of rows of waits for a GIL."""
    found = np.zeros(len(rows), GIL_WAIT_DTYPE)
    found["place"], found["begin_ns"], found["woken_ns"] = place, begin, woken
    for name in (*_OF_ROWS, *_OF_HOLDERS, "waker_kind"):
        found[name] = rows[name]
    found["args"] = rows["args"][:, :2]
    return found


def find_gil_waits(recording: Recording, waits: GilWaits, count: int) -> tuple[Bools, npt.NDArray[np.void]]:
    """(whether each of so many rows of waits begins one, HELD_DTYPE of those that wait for a GIL).

    waits: GIL_WAIT_DTYPE of those, in the order of places.
    """
    rows = _gil_rows(recording, waits)
    is_first = np.ones(count, np.bool_)
    is_first[rows.place] = rows.is_first
    return is_first, _waits_behind(waits, rows)


def _gil_rows(recording: Recording, waits: GilWaits) -> _GilRows:
    place, begin, woken = (waits[name].copy() for name in ("place", "begin_ns", "woken_ns"))
    back, ran, stolen, thread, stack, waker, waker_stack = (waits[name].astype(np.int64) for name in _OF_ROWS)
    kind, args = waits["waker_kind"], waits["args"]
    by_timer = (kind == WakerKind.INTERRUPT) | ((kind == WakerKind.UNKNOWN) & (woken - begin >= _TIMER_NS))
    address, operation = args.T
    gil = _gil_numbers(recording, thread, address)
    goes_on = (np.diff(place) == 1) & (np.diff(thread) == 0) & (np.diff(gil) == 0) & by_timer[:-1]
    goes_on &= (np.diff(ran) < _BETWEEN_NS) & (begin[1:] - back[:-1] - stolen[1:] < _GAP_NS)
    is_given = ~by_timer & (woken > begin)
    given_to, given_stack = np.where(is_given, thread, -1), stack
    by_holder = is_given & (_gave_away(recording, thread, address) | (operation & _FUTEX_COMMAND == _FUTEX_WAIT))
    wakers = np.array([0, *(waker.thread for waker in recording.wakers)], np.int64)
    given_to[by_holder] = wakers[waker[by_holder]] - 1
    given_stack = np.where(by_holder, waker_stack, given_stack)
    is_first = np.append(True, ~goes_on)[: len(place)]
    return _GilRows(
        place, thread, gil, begin, woken, given_to, given_stack, np.where(by_holder, begin, woken), is_first
    )


def _gave_away(recording: Recording, thread: Int64Array, address: npt.NDArray[np.uint64]) -> Bools:
    """For each wait for a GIL whether its thread waits for another one to take it."""
    switches = [recording.processes[row.process].gil_switch or (0, 0) for row in recording.threads]
    start, size = np.array(switches or [(0, 0)], np.uint64)[thread].T
    return np.asarray((address >= start) & (address - start < size))


def _gil_numbers(recording: Recording, thread: Int64Array, address: npt.NDArray[np.uint64]) -> Int64Array:
    process_of = np.array([row.process for row in recording.threads] or [0], np.int64)
    # Addresses of programs have 47 bits.
    keys = process_of[thread].astype(np.uint64) << np.uint64(47) | (address & np.uint64((1 << 47) - 1))
    unique, inverse = np.unique(keys, return_inverse=True)
    numbers = np.cumsum(np.append(False, np.diff(unique) >= _GIL_BYTES)[: len(unique)])
    return np.asarray(numbers[inverse], np.int64)


def _waits_behind(waits: GilWaits, rows: _GilRows) -> npt.NDArray[np.void]:
    """The blocked time of each row, cut where the GIL went to another thread or another function of the same."""
    taken = [waits[name].astype(np.int64) for name in _OF_HOLDERS]
    out_of_memory(waits)
    gils: list[tuple[Int64Array, Int64Array, tuple[Holders, npt.NDArray[np.int64], int]]] = []
    by_gil = np.lexsort((rows.thread, rows.gil))  # stable: of one thread still in the order of time
    for of_gil in np.split(by_gil, np.flatnonzero(np.diff(rows.gil[by_gil])) + 1) if len(by_gil) else ():
        seen = of_gil[taken[0][of_gil] > 0]
        given = of_gil[rows.given_to[of_gil] >= 0]
        start = np.concatenate([rows.begin_ns[seen], rows.given_ns[given]])
        holder = np.concatenate([taken[0][seen] - 1, rows.given_to[given]])
        stack = np.concatenate([taken[1][seen], rows.given_stack[given]])
        pairs, key = np.unique((holder + 1) << 32 | stack, return_inverse=True)
        pairs = np.append(pairs, 0)  # -1: not known
        holders = holders_of(start, holder, key)
        most = most_whole(holders, rows.begin_ns[of_gil], rows.woken_ns[of_gil], len(rows.place))
        gils.append((of_gil, rows.thread[of_gil], (holders, pairs, most)))
    del taken
    held = FiledRows(HELD_DTYPE)
    for threads in _together(rows.thread):
        own = ((of_gil[slice(*np.searchsorted(thread, threads))], cut) for of_gil, thread, cut in gils)
        parts = one_after_another(HELD_DTYPE, [_parts(rows, each, *cut) for each, cut in own if len(each)])
        held.append(picked(parts, np.lexsort((parts["start_ns"], parts["place"]))))
    return held.view()


def _together(threads: Int64Array) -> Iterator[tuple[int, int]]:
    """Ranges of threads, given for each row: so few that they have not many rows together, or one."""
    unique, counts = np.unique(threads, return_counts=True)
    begin = np.flatnonzero(np.diff((np.cumsum(counts) - counts) // _ROWS_TOGETHER, prepend=-1))
    yield from zip(unique[begin].tolist(), [*unique[begin[1:]].tolist(), int(unique.max(initial=0)) + 1])


def _parts(
    rows: _GilRows, own: Int64Array, holders: Holders, pairs: npt.NDArray[np.int64], most: int
) -> npt.NDArray[np.void]:
    """HELD_DTYPE of rows that wait for one GIL."""
    row, key, start_ns, ns = held_parts(holders, rows.thread[own], rows.begin_ns[own], rows.woken_ns[own], most)
    found = np.zeros(len(row), HELD_DTYPE)
    found["place"], found["start_ns"], found["ns"] = rows.place[own][row], start_ns, ns
    found["holder"], found["stack"] = pairs[key] >> 32, pairs[key] & 0xFFFFFFFF
    return picked(found, ns > 0)
