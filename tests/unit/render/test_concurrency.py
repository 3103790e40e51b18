"""How many threads ran at a time, for people and for programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bpfprof.model.profile import CONCURRENCY_DTYPE, Concurrency, Profile
from bpfprof.render.concurrency import concurrency_block, concurrency_json, concurrency_table
from tests.unit.render.profiles import INFO, MS, training_profile

AT_ONCE = ((0, 500, 100), (1, 300, 300), (2, 200, 150), (9, 0, 250), (11, 0, 150), (40, 0, 50))  # ms


def profile(cpus: float, spread_ms: int = 0, alone_ms: tuple[int, ...] | None = None) -> Profile:
    rows = np.array([(number, cpu * MS, ready * MS) for number, cpu, ready in AT_ONCE], CONCURRENCY_DTYPE)
    limits = {100: cpus} if cpus else {}
    made = replace(training_profile(), info=replace(INFO, cpu_limits=limits))
    alone_ns = None if alone_ms is None else np.array(alone_ms, np.int64) * MS
    return replace(made, concurrency=Concurrency(rows, spread_ms * MS, alone_ns))


def test_numbers_above_eight_are_in_ranges_of_those_that_were_seen() -> None:
    assert concurrency_block(profile(2.0, 300)) == [
        "threads at once",
        "    threads   on a CPU s   share   runnable s   share",
        "          0        0.500   50.0%        0.100   10.0%",
        "          1        0.300   30.0%        0.300   30.0%",
        "          2        0.200   20.0%        0.150   15.0%",
        "       9-11            -       -        0.400   40.0%",
        "         40            -       -        0.050    5.0%",
        "on average 0.70 on a CPU and 6.50 runnable (on a CPU or ready); more were runnable than the 2 CPUs",
        "  that they may use for 450.0 ms (45.0%)",
        "300.0 ms in short waits and preemptions, whose moments are not known, are laid evenly",
    ]


def test_without_the_number_of_cpus_nothing_is_said_of_them() -> None:
    assert "CPUs" not in " ".join(concurrency_block(profile(0)))
    other = profile(2.0)
    others = replace(other, threads=(*other.threads, replace(other.threads[0], pid=101)))
    others = replace(others, info=replace(INFO, cpu_limits={100: 2.0, 101: 1.0}))
    assert "CPUs" not in " ".join(concurrency_block(others))


def test_json_has_each_number() -> None:
    found = concurrency_json(profile(1.5, 1))["concurrency"]
    assert [it["threads"] for it in found.pop("at_once")] == [0, 1, 2, 9, 11, 40]
    assert found == {
        "wall_s": 1.0,
        "cpus": 1.5,
        "mean_on_cpu": 0.7,
        "mean_runnable": 6.5,
        "beyond_cpus_s": 0.6,
        "spread_s": 0.001,
        "alone": None,
    }


def test_who_was_the_only_one_that_could_run() -> None:
    given = profile(2.0, alone_ms=(200, 100, 0))
    line = "MainThread was the only one that could run 20% of the time"
    assert concurrency_block(given)[-1] == line
    table = concurrency_table(given)
    assert table is not None and table["lines"][-1] == line
    assert [(it["tid"], it["name"], it["alone_s"]) for it in concurrency_json(given)["concurrency"]["alone"]] == [
        (100, "MainThread", 0.2),
        (101, "io worker", 0.1),
    ]
    several = replace(given, threads=(*given.threads[:2], replace(given.threads[2], pid=101)))
    assert concurrency_block(several)[-1].startswith("MainThread of python (100) was the only one")


def test_who_was_hardly_the_only_one_or_is_the_only_thread_is_not_said() -> None:
    assert "only one" not in " ".join(concurrency_block(profile(2.0, alone_ms=(49, 0, 0))))
    given = profile(2.0, alone_ms=(300,))
    assert "only one" not in " ".join(concurrency_block(replace(given, threads=given.threads[:1])))


def test_where_it_was_not_asked_for_there_is_nothing() -> None:
    assert (concurrency_block(training_profile()), concurrency_json(training_profile())) == ([], {})
    assert concurrency_table(training_profile()) is None
