"""From when to when each wait of a thread was blocked and then runnable."""

from __future__ import annotations

import numpy as np

from bpfprof.account.groups import Group
from bpfprof.account.threads import Int64Array, RowsByThread

Times = tuple[Int64Array, Int64Array, Int64Array]


def wait_times(waits: RowsByThread, group: Group) -> Times:
    """(begin, woken, end) of each wait of a group, in nanoseconds of the kernel's clock.

    In the order of places; none begins before the one before it ends.
    """
    end, runqueue, blocked = (
        waits.column(name, group.waits).astype(np.int64) for name in ("time_ns", "runqueue_ns", "blocked_ns")
    )
    woken = np.subtract(end, runqueue, out=runqueue)
    begin = np.subtract(woken, blocked, out=blocked)
    from_ns = int(group.first_ns.min())
    apart = int(group.last_ns.max()) - from_ns + 1
    count = np.diff(group.wait_begin)
    rank, first, last = np.arange(len(count)), group.first_ns, group.last_ns
    if len(count) > 1:  # of one there may be very many
        rank, first, last = (np.repeat(each, count) for each in (rank, first, last))
    # The threads one after the other, so that none begins before the one before it ends.
    base = rank * apart - from_ns
    end.clip(first, last, out=end)
    end += base
    np.maximum.accumulate(end, out=end)
    end -= base
    before = np.append(0, end)[:-1]
    before[(np.cumsum(count) - count)[count > 0]] = group.first_ns[count > 0]
    woken.clip(before, end, out=woken)
    begin.clip(before, end, out=begin)
    return np.minimum(begin, woken, out=begin), woken, end
