"""The tables by function and by library fit a terminal, whatever the names are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bpfprof.model.profile import Profile
from bpfprof.query.tables.choices import ROW_GROUPINGS
from bpfprof.render.by_table import by_block
from bpfprof.render.columns import width
from bpfprof.render.formats import RenderOptions
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    native,
    python,
    training_profile,
    wait,
)


def rows(profile: Profile, by: str, limit: int = 10) -> list[str]:
    return by_block(profile, RenderOptions(by=by, limit=limit))[2:]


@pytest.mark.parametrize("by", ROW_GROUPINGS)
@pytest.mark.parametrize("made", [training_profile, hostile_profile, deep_profile, empty_profile])
def test_it_fits(by: str, made: Callable[[], Profile]) -> None:
    lines = by_block(made(), RenderOptions(by=by, limit=1000))
    assert all(line.isprintable() and width(line) <= 100 for line in lines)


def test_only_when_asked_for() -> None:
    assert by_block(training_profile(), RenderOptions()) == []


@pytest.mark.parametrize(("columns", "text"), [(100, "with lock:"), (200, "as long as there is room")])
def test_lines_have_their_text_where_there_is_room(columns: int, text: str) -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 2 * MS, [python("View.get", "/usr/lib/python3/dist-packages/shop/view.py", 3)])
    made.spend(thread, ON_CPU, MS, [python("g", "/srv/other.py", 3)])
    read = {"/usr/lib/python3/dist-packages/shop/view.py": ("\n\n\twith lock:  # as long as there is room\n", "")}
    options = RenderOptions(by="line", columns=columns, sources=lambda *_: read)
    first, second = by_block(made.build(), options)[2:]
    assert "  View.get (shop/view.py:3)  with lock:" in first and text in first and width(first) <= columns
    assert second.endswith("  g (other.py:3)")


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("task", ("no task of asyncio was seen", "--async-rate")),
        ("lock", ("no thread waited for a lock", "--by reason")),
        ("reason", ("no thread waited", "--mode cpu")),
        ("waker", ("no wait ended", "--mode cpu")),
        ("operator", ("no operator", "--group")),
        ("function", ("no stack was seen",)),
    ],
)
def test_what_is_not_there_is_said_with_what_would_show_it(by: str, words: tuple[str, ...]) -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1), ON_CPU, MS, [])
    text = " ".join(by_block(made.build(), RenderOptions(by=by)))
    assert text.startswith(f"time by {by}: ") and all(word in text for word in words), text


def test_columns() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(
        thread, ON_CPU, 2 * MS, [python("run"), python("Model.fit", "/v/lib/python3.9/site-packages/fit/m.py", 3)]
    )
    made.spend(thread, ON_CPU, MS, [python("run"), native("", "/v/libx.so", 0x1F)])
    profile = made.build()
    assert [line.split() for line in rows(profile, "function")] == [
        ["0.002", "0.002", "0.000", "0.000", "0.000", "fit", "fit.m", "Model.fit"],
        ["0.001", "0.003", "0.000", "0.000", "0.000", "own", "code", "train", "run"],
        ["0.000", "0.001", "0.000", "0.000", "0.000", "libx.so", "libx.so", "libx.so", "(no", "names)"],
    ]
    assert [line.split()[5:] for line in rows(profile, "library")] == [["fit"], ["libx.so"], ["own", "code"]]
    assert rows(profile, "library", limit=1)[1:] == ["and 2 more (--limit)"]


def test_order_and_merging() -> None:
    made = ProfileBuilder()
    for number in range(3):
        thread = made.thread(11 + number, f"worker_{number}")
        made.spend(thread, ON_CPU, (5 + number) * MS, [python("run")])
        made.spend(thread, RUNQUEUE, (9 - number) * MS, [python("run"), READY])
    profile = made.build()
    by_ready = by_block(profile, RenderOptions(by="thread", sort="ready"))[2:]
    assert [line.split()[-2] for line in by_ready] == ["worker_0", "worker_1", "worker_2"]
    (line,) = by_block(profile, RenderOptions(by="thread", merge="role"))[2:]
    assert line.split() == ["0.018", "0.018", "0.024", "0.000", "0.000", "worker_0..2", "(3", "threads)"]


def test_times_of_locks_are_named_as_those_of_functions() -> None:
    """Each column has a name of its own, which says of what its total is."""
    made = ProfileBuilder()
    waits, holds = made.thread(1), made.thread(2)
    made.spend(holds, ON_CPU, 60 * MS, [python("hog")])
    taken = [python("f"), wait("lock")]
    made.wait(waits, 50 * MS, taken, lock=0x7F00, waker=made.thread_waker(holds))
    headings = [by_block(made.build(), RenderOptions(by=by))[1] for by in ("lock", "function")]
    times = " CPU own CPU total ready own wait own wait total  "
    assert headings == [f"{times}lock", f"{times}{'library':<12} {'module':<16} function"]


def test_threads_that_only_waited_on_a_cpu_say_how_long() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(11, "waiter"), made.thread(12, "worker")
    made.spend(waiter, ON_CPU, 70 * MS, [python("run"), native("sched_yield")])
    made.spend(waiter, OFF_CPU, 20 * MS, [python("run"), native("sleep"), wait("sleep")])
    made.spend(worker, ON_CPU, 50 * MS, [python("work", line=9)])
    profile = made.build()
    title, heading, *lines = by_block(profile, RenderOptions(by="thread"))
    assert title == "seconds by thread: CPU waits are a part of wait own; waits for work left out"
    assert heading.endswith("wait own wait total CPU waits  thread")
    assert [line.split() for line in lines] == [
        ["0.000", "0.000", "0.000", "0.090", "0.090", "0.070", "waiter", "(11)", "(spin", "0.070,", "sleep", "0.020)"],
        ["0.050", "0.050", "0.000", "0.000", "0.000", "0.000", "worker", "(12)"],
    ]
    assert all("CPU waits" not in line for line in by_block(profile, RenderOptions(by="process")))


def test_processes_that_lived_short_are_one_row() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1, pid=1, process="service"), ON_CPU, 1_000 * MS, [python("run")])
    for pid in range(2, 7):
        made.spend(made.thread(pid, pid=pid, process="ls" if pid % 2 else "sh"), ON_CPU, MS, [native("main")])
    lines = by_block(made.build(), RenderOptions(by="process"))[2:]
    assert [line.split("  ")[-1] for line in lines] == ["service (1)", "short: sh, ls (5 processes)"]
    assert lines[1].split()[0] == "0.005"


def test_a_reason_that_is_not_known_is_other_as_everywhere() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(1), 20 * MS, [python("main"), wait("unknown")], waker=made.waker("interrupt"))
    (row,) = rows(made.build(), "reason")
    assert row.split()[-1] == "other", row
