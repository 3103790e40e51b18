"""Profile -> lines and JSON on deadlocks, on threads that are stuck, and on orders of locks that may end in one."""

from __future__ import annotations

from typing import Any

from bpfprof.model.profile import LastWait, Profile
from bpfprof.query.answer.stuck import stuck_threads
from bpfprof.query.waits.lock_orders import LockOrder, deadlocks, order_cycles
from bpfprof.query.work.table import Work
from bpfprof.render.columns import wrapped
from bpfprof.render.labels import printable, thread_label

_MOST_STUCK = 5
_CUT = ("locks not looked at", "pairs of locks not followed", "further cycles")  # as in OrderCycles


def deadlock_lines(profile: Profile) -> list[str]:
    """One for each: `DEADLOCK: thread a (1) -> thread b (2) -> thread a (1)`."""
    found = []
    for cycle in deadlocks(profile):
        names = [thread_label(profile.threads[thread]) for thread in (*cycle, cycle[0])]
        found += wrapped(f"DEADLOCK: {' -> '.join(names)}", "  ")
    return found


def stuck_lines(profile: Profile, work: Work) -> list[str]:
    """Some for each wait that did not end and is for no work, those with most time first."""
    in_circles = {thread for cycle in deadlocks(profile) for thread in cycle}
    found = [each for each in stuck_threads(profile, work) if not in_circles >= {*each.threads}]
    lines = [line for each in found[:_MOST_STUCK] for line in wrapped(printable(each.sentence), "  ")]
    return lines + [f"and {len(found) - _MOST_STUCK} more that are stuck"] * (len(found) > _MOST_STUCK)


def last_wait_json(wait: LastWait, profile: Profile) -> dict[str, Any]:
    """As `waits_for` of `dump -j`."""
    holder = profile.threads[wait.holder] if wait.holder >= 0 else None
    return {
        "kind": wait.kind,
        "name": printable(wait.name),
        "held_by_tid": int(holder.tid) if holder else None,
        "held_by_pid": int(holder.pid) if holder else None,
        "held_by": printable(wait.held_by) or None,
        "nobody": wait.nobody or None,
    }


def order_lines(profile: Profile, work: Work, labels: list[str]) -> list[str]:
    """A block for each cycle; locks have the numbers of `report --by lock`."""
    found, seen = [], order_cycles(profile, work)
    for cycle in seen.cycles:
        found.append("locks taken in another order, which can end in a deadlock:")
        for order in cycle:
            where = f" in {labels[order.frame]}" if order.frame >= 0 else ""
            who = thread_label(profile.threads[order.thread])
            found += wrapped(f"    {who} had lock #{order.has} and waited for #{order.wanted}{where}", "      ")
    cut = {text: count for text, count in zip(_CUT, (seen.unseen_locks, seen.unfollowed, seen.more)) if count}
    told = ", ".join(f"{text} {count:,}" for text, count in cut.items())
    return found + (wrapped(f"orders of locks are not all here: {told}", "  ") if cut else [])


def lock_order_json(profile: Profile, work: Work) -> dict[str, Any]:
    """Members of the JSON of a report."""
    seen = order_cycles(profile, work)
    return {
        "deadlocks": [[int(profile.threads[thread].tid) for thread in cycle] for cycle in deadlocks(profile)],
        "lock_order_cycles": [[_order(profile, order) for order in cycle] for cycle in seen.cycles],
        "lock_orders_cut": {"locks": seen.unseen_locks, "pairs": seen.unfollowed, "cycles": seen.more},
    }


def _order(profile: Profile, order: LockOrder) -> dict[str, Any]:
    thread, frame = profile.threads[order.thread], profile.frames[order.frame] if order.frame >= 0 else None
    place = frame and {"function": printable(frame.name), "file": printable(frame.file), "line": frame.line or None}
    return {
        "pid": int(thread.pid),
        "tid": int(thread.tid),
        "has": f"#{order.has}",
        "waits_for": f"#{order.wanted}",
        "where": place,
    }
