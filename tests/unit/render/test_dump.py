"""Processes made by hand as the text and the JSON of `dump`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import ON_CPU, WAITING, ProcessNow, TaskNow, ThreadNow, WaitsFor
from bpfprof.render.dump_json import render_dump_json
from bpfprof.render.dump_text import duration_text, render_dump_text

EVIL = "x\x1b[31m\n"
STEP = Frame(FrameKind.PYTHON, "step", "/srv/app.py", 7)
START = [Frame(FrameKind.PYTHON, f"start {line}", "/lib/threading.py", line) for line in (1, 2, 3)]
FIRST, SECOND = Tid(11), Tid(12)


def waiting(tid: Tid, name: str, holder: Tid | None) -> ThreadNow:
    wanted = WaitsFor("lock", f"lock #{tid}", holder, Pid(10) if holder else None)
    return ThreadNow(tid, name, WAITING, "lock", 1.5, False, False, wanted, [STEP, *START])


def process(*threads: ThreadNow, deadlocks: tuple[tuple[Tid, ...], ...] = ()) -> ProcessNow:
    cycles = [list(cycle) for cycle in deadlocks]
    return ProcessNow(Pid(10), f"app {EVIL}", ("cpython", "3.11.2"), "", list(threads), deadlocks=cycles)


DEADLOCKED = process(waiting(FIRST, f"one {EVIL}", SECOND), waiting(SECOND, "two", FIRST), deadlocks=((FIRST, SECOND),))
RUNNING = ThreadNow(Tid(13), "busy", ON_CPU, "", None, False, True, None, [STEP])


def test_a_deadlock_is_first_and_nothing_acts_on_the_terminal() -> None:
    text = render_dump_text(DEADLOCKED, False, False)
    assert text.startswith("DEADLOCK: one x?[31m? -> two -> one x?[31m?\n")
    assert "\x1b" not in text and "No deadlock" not in text
    assert "lock #12, for 1.5 s, held by one x?[31m?, 1 waits for it" in text


def test_frames_that_only_start_a_thread_are_folded_unless_asked_for() -> None:
    folded, whole = (render_dump_text(process(waiting(FIRST, "one", None)), all_, True) for all_ in (False, True))
    assert "... 3 frames  (-a shows all)" in folded and "start 2" not in folded
    assert "start 2" in whole and "/srv/app.py:7" in whole
    alone = replace(waiting(FIRST, "one", None), frames=START)
    assert "start 1" in render_dump_text(process(alone), False, False)


def test_running_threads_come_before_waiting_ones_and_idle_ones_last() -> None:
    idle = replace(waiting(SECOND, "idle one", None), is_idle=True)
    lines = render_dump_text(process(idle, waiting(FIRST, "one", RUNNING.tid), RUNNING), False, False).splitlines()
    heads = [line.split()[:2] for line in lines if " RUNNING " in line or " WAITING " in line or " IDLE " in line]
    assert heads == [[">", "busy"], ["one", "11"], ["idle", "one"]]
    assert lines[0].endswith("GIL: busy") and lines[-1] == "Waits on: one -> busy. No deadlock is seen."


def test_a_holder_that_is_not_known_is_said_so() -> None:
    last = render_dump_text(process(waiting(FIRST, "one", None)), False, False).splitlines()[-1]
    assert last == "No deadlock is seen. Of 1 wait for a lock it is not known who holds it."


def test_many_tasks_are_cut_and_counted() -> None:
    tasks = [TaskNow(f"task-{number}", "sleep", None, [replace(STEP, line=number)]) for number in range(25)]
    many = replace(process(RUNNING), tasks=tasks)
    assert "... 5 more tasks" in render_dump_text(many, False, False)
    assert "more tasks" not in render_dump_text(many, True, False)


def test_tasks_that_wait_for_the_same_in_the_same_stack_are_one_unless_asked_for() -> None:
    tasks = [TaskNow(f"task-{number}", "sleep", "gather", [STEP]) for number in range(25)]
    many = replace(process(RUNNING), tasks=[*tasks, TaskNow("task-25", "net", None, [STEP])])
    folded, whole = (render_dump_text(many, all_, False) for all_ in (False, True))
    assert "  25 tasks task-0..24  sleep, waited for by gather, same stack  (-a shows each)\n" in folded
    assert folded.count("app.py:7") == 3 and "  task task-25  net\n" in folded and whole.count("app.py:7") == 27


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 200])
def test_no_line_is_longer_than_the_terminal_and_nothing_is_lost(columns: int) -> None:
    long = replace(waiting(FIRST, "a thread with a name of many words " * 2, SECOND), note="its stack changed")
    frames = [Frame(FrameKind.PYTHON, "a_function_of_a_long_name" * 3, "/srv/app/package/module.py", 12345), *START]
    given = process(replace(long, frames=frames), waiting(SECOND, "two", RUNNING.tid), RUNNING)
    lines = render_dump_text(given, False, True, columns).splitlines()
    assert max(map(len, lines)) <= max(columns, 60)
    told = " ".join(" ".join(lines).split())
    unread = replace(
        given, interpreter=None, note="whether it runs Python is not known: " + "a reason of many words " * 9
    )
    assert unread.note in " ".join(render_dump_text(unread, False, True, columns).split()) + " "
    held = f"lock #11, {'for ' * (columns >= 80)}1.5 s, held by two"
    assert held in told and ":12345" in told and "(its stack changed)" in told


@pytest.mark.parametrize("waiters", [1, 12])
def test_who_waits_for_it_stands_on_the_line_of_an_ordinary_terminal(waiters: int) -> None:
    holder = replace(waiting(SECOND, "waitress-3", RUNNING.tid), tid=Tid(1234567), for_s=0.123)
    others = [waiting(Tid(number), f"waitress-{number}", holder.tid) for number in range(100, 100 + waiters)]
    lines = render_dump_text(process(holder, *others, RUNNING), True, False, 80).splitlines()
    first = next(line for line in lines if line.startswith("  waitress-3 "))
    assert first.endswith(f"lock #12, 123 ms, held by busy, {waiters} wait{'s' * (waiters == 1)}"), first


SOURCES = {
    "/srv/app.py": (
        "\n" * 6 + "    with lock:\x1b[31m  # held for long, and longer than there is any room for it\n",
        "",
    )
}


@pytest.mark.parametrize(("columns", "text"), [(60, ""), (80, "> with lock:?[31m  # h"), (300, "room for it")])
def test_the_line_that_runs_is_marked_where_there_is_room(columns: int, text: str) -> None:
    caller = Frame(FrameKind.PYTHON, "call_of_the_step", "/srv/app.py", 99)  # no such line
    long = replace(STEP, name="step_of_the_whole_night")
    given = process(replace(RUNNING, frames=[*START, long, caller]))
    asked: list[list[str]] = []
    whole = render_dump_text(given, False, False, columns, lambda paths: bool(asked.append(paths)) or SOURCES)
    assert asked == [["/lib/threading.py", "/srv/app.py"]] and "\x1b" not in whole
    (line,) = (line for line in whole.splitlines() if "app.py:7" in line)
    assert text in line and len(line) <= columns and (">" in line) == bool(text)
    assert next(line for line in whole.splitlines() if "app.py:99" in line).endswith("app.py:99")


def test_lines_of_a_file_that_was_changed_are_missed_with_the_reason() -> None:
    read = {"/srv/app.py": ("", "it was changed after the process began"), "/lib/threading.py": ("", "no such file")}
    text = render_dump_text(process(waiting(FIRST, "one", None)), False, False, 100, lambda _: read)
    assert text.endswith("\nLines of app.py are not shown: changed after the process began.\n")


def test_a_thread_without_frames_says_so() -> None:
    assert "    (no Python frame was seen)\n" in render_dump_text(process(replace(RUNNING, frames=[])), False, False)


def test_json_holds_what_is_known_and_null_for_the_rest() -> None:
    (found,) = json.loads(render_dump_json([process(RUNNING, waiting(FIRST, "one", None))]))["processes"]
    running, one = found["threads"]
    assert (running["reason"], running["for_s"], running["waits_for"]) == (None, None, None)
    assert one["waits_for"] == {"kind": "lock", "name": "lock #11", "held_by_tid": None, "held_by_pid": None}
    step = {"name": "step", "file": "/srv/app.py", "line": 7, "object": "", "kind": "python"}
    assert running["frames"] == [step] and found["interpreter"] == {"name": "cpython", "version": "3.11.2"}


def test_threads_that_do_the_same_are_one_unless_asked_for() -> None:
    alike = [
        replace(waiting(Tid(number), f"worker {number}", None), waits_for=None, for_s=number)
        for number in range(20, 26)
    ]
    folded, whole = (render_dump_text(process(*alike, RUNNING), all_, True) for all_ in (False, True))
    assert "  worker 20..25 (6 threads)  WAITING" in folded and folded.count("/srv/app.py") == 2
    assert "for 20.0 s to 25.0 s, same stack" in folded and "worker 20 " not in folded
    assert whole.count("/srv/app.py") == 7 and "same stack" not in whole
    held = process(*(waiting(tid, f"worker {tid}", Tid(13)) for tid in (FIRST, SECOND)), RUNNING)
    assert "(2 threads)" not in render_dump_text(held, False, True), "they wait for locks of their own"


def test_a_join_and_a_lock_of_another_process() -> None:
    joins = replace(waiting(FIRST, "one", None), waits_for=WaitsFor("thread", "end of thread", RUNNING.tid, Pid(10)))
    shared = replace(waiting(SECOND, "two", None), waits_for=WaitsFor("lock", "lock #1", Tid(77), Pid(70)))
    text = render_dump_text(process(joins, shared, RUNNING), False, True)
    assert "end of busy, for 1.5 s\n" in text and "lock #1, for 1.5 s, held by thread 77 of process 70\n" in text
    assert "one -> busy; two -> 77" in text


def test_a_recursion_is_counted_unless_all_is_asked_for() -> None:
    deep = process(replace(RUNNING, frames=[STEP] * 500 + [replace(STEP, line=9)]))
    folded, whole = (render_dump_text(deep, all_, True) for all_ in (False, True))
    assert folded.count("app.py:7") == 1 and "... the same 499 times more" in folded and "app.py:9" in folded
    assert whole.count("app.py:7") == 500


def test_variables_are_below_their_frames_and_in_the_json_only_when_there() -> None:
    asked = replace(RUNNING, frames=[STEP, STEP], variables=[{"x": "1;2", f"n{EVIL}": EVIL}, {}])
    text = render_dump_text(process(asked), False, True)
    assert "/srv/app.py:7\n        x = 1;2\n        nx?[31m? = x?[31m?\n" in text
    (found,) = json.loads(render_dump_json([process(asked, RUNNING)]))["processes"]
    assert [frame.get("locals") for thread in found["threads"] for frame in thread["frames"]] == [
        {"x": "1;2", f"n{EVIL}": EVIL},
        {},
        None,
    ]


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (0.00123, 1.5, 600, 9000)] == ["1.23 ms", "1.5 s", "10 min", "2.5 h"]
