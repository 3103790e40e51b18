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
    end, runqueue, blocked = (
        waits.column(name, own).astype(np.int64) for name in ("time_ns", "runqueue_ns", "blocked_ns")
    )
    woken = np.subtract(end, runqueue, out=runqueue)
    begin = np.subtract(woken, blocked, out=blocked)
    from_ns = int(threads.first_ns.min(initial=threads.start_ns))  # a damaged recording has threads before it began
    apart = int(threads.last_ns.max(initial=threads.end_ns)) - from_ns + 1
    count = np.diff(waits.begin[group.start : group.stop + 1])
    first_ns, last_ns = (times[group.start : group.stop] for times in (threads.first_ns, threads.last_ns))
    rank, first, last = np.arange(len(group)), first_ns, last_ns
    if len(group) > 1:  # of one there may be very many
        rank, first, last = (np.repeat(each, count) for each in (rank, first, last))
    # The threads one after the other, so that none begins before the one before it ends.
    base = rank * apart - from_ns
    end.clip(first, last, out=end)
    end += base
    np.maximum.accumulate(end, out=end)
    end -= base
    before = np.append(0, end)[:-1]
    before[(np.cumsum(count) - count)[count > 0]] = first_ns[count > 0]
    woken.clip(before, end, out=woken)
    begin.clip(before, end, out=begin)
    return np.minimum(begin, woken, out=begin), woken, end
