"""Threads that do the same are one row, also in several processes of a pool."""

from __future__ import annotations

import pytest

from bpfprof.model.spans import SpanFlag
from bpfprof.query.threads.roles import Role, roles_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, python, wait


def roles(made: ProfileBuilder) -> dict[str, Role]:
    profile = made.build()
    return {role.name: role for role in roles_of(profile, work_of(profile))}


def spend(made: ProfileBuilder, tid: int, name: str, busy_ms: int = 100, pid: int = 1, process: str = "python") -> None:
    thread = made.thread(tid, name, pid=pid, process=process)
    made.spend(thread, ON_CPU, busy_ms * MS, [python("work")])
    made.wait(thread, (1_000 - busy_ms) * MS, [python("ask"), wait("net")])


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["worker_0", "worker_11", "worker_2"], "worker_0..11"),
        (["ThreadPoolExecutor-0_0", "ThreadPoolExecutor-0_3"], "ThreadPoolExecutor-0_0..3"),
        (["t1 of 2", "t2 of 4"], "t1..2 of 2..4"),
        (["loader", "loader"], "loader"),
    ],
)
def test_names_fold_by_their_numbers(names: list[str], folded: str) -> None:
    made = ProfileBuilder()
    for number, name in enumerate(names):
        spend(made, 10 + number, name)
    found = roles(made)
    assert [*found] == [folded] and len(found[folded].threads) == len(names)
    assert (found[folded].cpu_ns, found[folded].wait_ns) == (len(names) * 100 * MS, len(names) * 900 * MS)


def test_main_threads_of_a_pool_of_processes_are_one_row_and_other_commands_another() -> None:
    made = ProfileBuilder()
    for pid in (100, 200, 300):
        spend(made, pid, "MainThread", pid=pid)
    spend(made, 400, "MainThread", pid=400, process="nginx")
    profile = made.build()
    assert [(role.process_name, len(role.threads)) for role in roles_of(profile, work_of(profile))] == [
        ("python", 3),
        ("nginx", 1),
    ]


@pytest.mark.parametrize(("busy_ms", "is_apart"), [(190, False), (300, True)])
def test_a_thread_that_works_more_than_twice_as_much_is_apart(busy_ms: int, is_apart: bool) -> None:
    made = ProfileBuilder()
    for number in range(4):
        thread = made.thread(10 + number, f"w{number}")
        ns = (busy_ms if number == 2 else 100) * MS
        made.spend(thread, ON_CPU, ns, [python("work")])
        made.wait(thread, 1_000 * MS - ns, [python("get"), wait("lock")], flags=SpanFlag.IDLE)
    assert ("w2" in roles(made)) == is_apart
