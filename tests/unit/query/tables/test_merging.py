"""Threads of a role, a process or a pool of processes as one."""

from __future__ import annotations

import pytest

from bpfprof.model.profile import Profile
from bpfprof.query.tables.merging import merged_threads, with_merged_threads
from bpfprof.query.threads.roles import roles_of
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.off_cpu import render_off_cpu
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, collapsed_text, native, python, wait

BOOTSTRAP = python("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002)


def pool(processes: int = 2, workers: int = 3) -> ProfileBuilder:
    """Processes of one command, each with a main thread and workers that work the same time."""
    made = ProfileBuilder()
    for pid in range(100, 100 * (processes + 1), 100):
        main = made.thread(pid, "MainThread", pid=pid, process="serve")
        made.wait(main, 100 * MS, [python("main"), wait("poll")])
        for number in range(workers):
            thread = made.thread(pid + number + 1, f"worker_{number}", pid=pid, process="serve")
            made.spend(thread, ON_CPU, 60 * MS, [BOOTSTRAP, python("work")])
            made.wait(thread, 40 * MS, [BOOTSTRAP, python("work"), wait("lock")])
    return made


def names(profile: Profile, merge: str, folds_short: bool = False) -> dict[str, int]:
    """What threads are merged to -> milliseconds on a CPU."""
    found = merged_threads(profile, work_of(profile), merge, folds_short)
    return {
        f"{thread.process_name} ({thread.process_id}): {thread.thread_name} ({thread.thread_id})": thread.on_cpu_ns
        // MS
        for thread in found.threads
    }


def test_merging() -> None:
    profile = pool().build()
    assert len(names(profile, "none")) == len(profile.threads) == 8
    assert names(profile, "role") == {
        "serve (2 processes): worker_0..2 (6 threads)": 360,
        "serve (2 processes): MainThread (2 threads)": 0,
    }
    assert names(profile, "process") == {"serve (2 processes): all (8 threads)": 360}
    assert names(pool(1).build(), "process") == {"serve (100): all (4 threads)": 180}
    assert [*names(pool(1, 1).build(), "role")] == ["serve (100): worker_0 (101)", "serve (100): MainThread (100)"]


@pytest.mark.parametrize("merge", ["role", "process", "none"])
def test_what_they_spent_is_the_same(merge: str) -> None:
    profile = pool().build()
    merged = with_merged_threads(profile, merge)
    for name in ("wall_ns", "accounted_ns", "on_cpu_ns", "off_cpu_ns", "wait_count"):
        assert sum(getattr(it, name) for it in merged.threads) == sum(getattr(it, name) for it in profile.threads)
    for column in ("total_ns", "count"):
        assert merged.weights[column].sum() == profile.weights[column].sum()
    found = merged_threads(profile, work_of(profile), merge)
    assert len(found.group_of) == len(profile.threads) and set(found.group_of.tolist()) == {*range(len(found.threads))}


def test_stacks_of_merged_threads_are_one_line() -> None:
    profile = pool().build()
    assert len(collapsed_text(profile, RenderOptions()).splitlines()) == 14
    assert collapsed_text(profile, RenderOptions(merge="role")).splitlines() == [
        "process serve (2 processes);thread worker_0..2 (6 threads);Thread._bootstrap (threading.py:1002);"
        "work (train.py) 360000",
        "process serve (2 processes);thread worker_0..2 (6 threads);Thread._bootstrap (threading.py:1002);"
        "work (train.py);[off-cpu: lock] 240000",
        "process serve (2 processes);thread MainThread (2 threads);main (train.py);[off-cpu: poll] 200000",
    ]


def test_waits_of_merged_threads_are_one_group() -> None:
    text = render_off_cpu(pool().build(), RenderOptions(by="thread", merge="role"))
    assert "thread worker_0..2 (6 threads), process serve (2 processes)\n 240.0 ms" in text


def test_processes_that_lived_short_are_one_if_there_are_several() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1, "main", pid=1, process="service"), ON_CPU, 1_000 * MS, [python("run")])
    for pid in range(2, 4):
        made.spend(made.thread(pid, "sh", pid=pid, process="sh"), ON_CPU, MS, [native("main")])
    assert len(names(made.build(), "none", folds_short=True)) == 3
    for pid, name in ((4, "ls"), (5, "bash"), (6, "cat")):
        made.spend(made.thread(pid, name, pid=pid, process=name), ON_CPU, MS, [native("main")])
    for merge in ("role", "none"):
        assert names(made.build(), merge, folds_short=True) == {
            "service (1): main (1)": 1_000,
            "short: sh, ls, bash, … (5 processes): all (5 threads)": 5,
        }
    assert len(names(made.build(), "none")) == 6


def roles(*threads: tuple[str, str]) -> list[str]:
    """Of (name, function that it began in)."""
    made = ProfileBuilder()
    for number, (name, root) in enumerate(threads):
        thread = made.thread(10 + number, name)
        made.spend(thread, ON_CPU, 60 * MS, [BOOTSTRAP, python(root), python("same")])
    profile = made.build()
    return [role.name for role in roles_of(profile, work_of(profile))]


def test_threads_that_began_in_one_function_are_one_role() -> None:
    assert roles(("alpha", "serve"), ("beta 1", "serve"), ("beta 3", "serve"), ("gamma", "other")) == [
        "alpha, beta 1..3",
        "gamma",
    ]


def test_names_that_were_made_up_do_not_make_a_role() -> None:
    assert roles(("Thread-1", "serve"), ("Thread-2", "serve"), ("Thread-3", "log")) == ["Thread-1..2", "Thread-3"]
