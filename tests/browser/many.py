"""Profiles that are hard to draw: a service of deep stacks, and many threads."""

from __future__ import annotations

from bpfprof.model.profile import Profile
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    kernel,
    native,
    python,
    wait,
)


def deep_service(depth: int = 50, workers: int = 2, has_branches: bool = False) -> Profile:
    """Workers whose requests are `depth` frames deep before they wait: for a lock, the GIL, a disk and a CPU.

    has_branches: at each level some of the time goes elsewhere.
    """
    made = ProfileBuilder()
    web = "/srv/lib/site-packages/web"
    base = [python(f"layer_{level}", f"{web}/layer_{level % 7}.py", 10 + level) for level in range(depth - 4)]
    views = [[*base, python(name, "/srv/app/views.py", 27)] for name in ("catalog", "audit", "search")]
    futex = [native("pthread_cond_timedwait"), kernel("entry_SYSCALL_64"), kernel("futex_wait")]
    for tid in range(200, 200 + workers):
        thread = made.thread(tid, f"worker_{tid - 200}")
        for level in range(1, depth - 4) if has_branches else ():
            made.spend(thread, ON_CPU, 50 * MS, [*base[:level], python(f"check_{level}", f"{web}/checks.py", level)])
        for turn in range(30):
            view = views[turn % 3]
            made.spend(thread, ON_CPU, 4 * MS, [*view, python("render", "/srv/app/views.py", 61)])
            made.spend(thread, RUNQUEUE, 3 * MS, [*view, READY])
            made.spend(thread, OFF_CPU, 30 * MS, [*view, *futex, wait("lock")])
            made.spend(thread, OFF_CPU, 9 * MS, [*view, wait("gil")])
            made.spend(thread, OFF_CPU, 6 * MS, [*view, native("fsync"), wait("disk")])
    return made.build()


def many_threads(count: int = 65) -> Profile:
    """Each with a hottest leaf of its own, one in a thousand of its time; the others are smaller."""
    made = ProfileBuilder()
    for number in range(count):
        thread = made.thread(1_000 + number, f"task{'abcdefgh'[number % 8]}{'abcdefghi'[number // 8]}")
        base = [python("<module>", line=90), python("work", "/srv/app/work.py", 5)]
        made.spend(thread, OFF_CPU, 1_990 * MS, [*base, wait("lock")])
        made.spend(thread, ON_CPU, 2 * MS, [*base, native(f"hottest_{number}", "/srv/app/_fast.so")])
        for small in range(20):
            made.spend(thread, ON_CPU, MS // 20, [*base, native(f"small_{small}_{number}", "/srv/app/_fast.so")])
    return made.build()
