"""From when to when each wait of a thread was blocked and then runnable."""

from __future__ import annotations

import numpy as np

from bpfprof.account.threads import Int64Array, Threads

Times = tuple[Int64Array, Int64Array, Int64Array]


def wait_times(threads: Threads, group: range) -> Times:
    """(begin, woken, end) of each wait of threads that follow one another, in nanoseconds of the kernel's clock.

    In the order of places; none begins before the one before it ends.
    """
    waits = threads.waits
    own = waits.of_threads(group)
    columns = (waits.column(name, own) for name in ("time_ns", "runqueue_ns", "blocked_ns"))
    end, runqueue, blocked = (column.astype(np.int64) for column in columns)
    woken, begin = end - runqueue, end - runqueue - blocked
    from_ns = int(threads.first_ns.min(initial=threads.start_ns))  # a damaged recording has threads before it began
    apart = int(threads.last_ns.max(initial=threads.end_ns)) - from_ns + 1
    count = np.diff(waits.begin[group.start : group.stop + 1])
    rank = np.repeat(np.arange(len(group)), count)
    limits = threads.first_ns, threads.last_ns
    first, last = (np.repeat(times[group.start : group.stop], count) for times in limits)
    # The threads one after the other, so that none begins before the one before it ends.
    base = rank * apart - from_ns
    end = np.maximum.accumulate(end.clip(first, last) + base) - base
    before = np.append(0, end)[:-1]
    is_first = np.flatnonzero(np.diff(rank, prepend=-1))
    before[is_first] = first[is_first]
    woken, begin = np.clip(woken, before, end), np.clip(begin, before, end)
    return np.minimum(begin, woken), woken, end
