"""The table of waits."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.statuses import Status
from bpfprof.model.syscalls import syscall_name
from bpfprof.query.tables.groups import group_waits
from bpfprof.render.formats import GROUPINGS, RenderOptions
from bpfprof.render.off_cpu import bars, histogram_line, render_off_cpu
from bpfprof.render.quality import quality_line
from bpfprof.render.table import render_table
from tests.unit.render.profiles import (
    INFO,
    MS,
    ProfileBuilder,
    hostile_profile,
    kernel,
    native,
    python,
    wait,
    waiting_profile,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "waiting.offcpu.txt"
OPTIONS = RenderOptions()


def table(profile, by: str = "stack", **options) -> str:
    return render_off_cpu(profile, RenderOptions(by=by, **options))


def wide_profile():
    """Everything is long: names, times, stacks, counts."""
    made = ProfileBuilder(info=replace(INFO, command_line=("python", "長" * 200)))
    stack = [python("関数" * 60, f"/srv/{'道' * 60}.py", 10**6) for _ in range(30)]
    for tid in range(4_194_280, 4_194_300):
        thread = made.thread(tid, "長い名前" * 5, 4_194_300, "プロセス" * 5)
        waker = made.thread_waker(thread)
        outside = made.waker(pid=4_194_303, tid=4_194_303, process_name="プロセス" * 50, thread_name="長" * 50)
        made.wait(thread, 10**14, [*stack, wait("lock")], waker=waker, waker_stack=stack, lock=2**63)
        gil = {"waker": outside, "waker_stack": stack, "lock": 2**63, "behind": [(1, thread, stack)]}
        made.wait(thread, 10**14, [*stack, wait("gil")], **gil)
        for other in range(20):
            name = f"syscall {syscall_name(other)}"
            made.wait(thread, MS, [native("f" * 200), wait(name)], waker=outside, reason=1000 + other)
    return made.build()


def columns(line: str) -> int:
    return sum(2 if ord(char) > 0x2E80 else 1 for char in line)


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("profile", [waiting_profile, hostile_profile, wide_profile])
def test_fits_a_terminal_and_ends_with_the_quality_line(profile, by: str) -> None:
    text = table(profile(), by)
    body, last = text.rstrip("\n").rsplit("\n\n", 1)
    assert all(line.isprintable() and columns(line) <= 100 for line in body.split("\n"))
    assert last.replace(" ", "").replace("\n", "") == quality_line(profile()).replace(" ", "")


@pytest.mark.parametrize("by", GROUPINGS)
def test_ascii_only(by: str) -> None:
    assert table(waiting_profile(), by, ascii_only=True).isascii()
    assert not table(waiting_profile(), by).isascii()


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    for by in GROUPINGS:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", table(hostile_profile(), by))


def test_golden() -> None:
    content = table(waiting_profile())
    if os.environ.get("BPFPROF_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(content, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == content


def test_the_accounting_of_each_thread_is_a_detail() -> None:
    short, long = (table(waiting_profile(), details=it).rpartition("\n\n")[0] for it in (False, True))
    assert long.startswith(short) and "MainThread          100   1.596" in long[len(short) :]


def test_what_runs_the_code_of_others_is_one_word_but_in_details() -> None:
    made = ProfileBuilder()
    inner = [native("lock_acquire", "/usr/lib/libpython3.12.so.1.0"), native("futex_wait", "/usr/lib/libc.so.6")]
    outer = [native("clone3", "/usr/lib/libc.so.6"), native("start_thread", "/usr/lib/libc.so.6")]
    thread = made.thread(100)
    made.wait(thread, 900 * MS, [*outer, python("audit", "/srv/app.py", 21), *inner, wait("lock")])
    made.wait(thread, 300 * MS, [*outer, native("worker_main", "/usr/lib/libc.so.6"), wait("disk")])
    text, whole = (table(made.build(), details=it) for it in (False, True))
    assert "    (2 frames of libc, libpython3.12) < audit (app.py:21) < (2 frames of libc)\n" in text
    assert "futex_wait (libc.so.6) < lock_acquire (libpython3.12.so.1.0) < audit (app.py:21)" in whole
    assert "worker_main (libc.so.6) < start_thread (libc.so.6)" in text, "there is nothing else to name"


def test_who_woke_is_said_with_share_and_function() -> None:
    text = table(waiting_profile())
    assert "    woken by thread producer (101) in Queue.put (queue.py), 91%, and by 1 other\n" in text
    assert "      why it was late: sleep in produce (train.py), ended by a timer, 100%\n" in text
    assert "    woken by an interrupt, 100%\n" in text
    assert "    GIL held, 93%, by hog_gil (oracle.py:12) of thread hog (102)\n" in text
    assert "\nwoken by thread sd-bus (8) of process systemd (7)\n" in table(waiting_profile(), "waker")
    assert "\nlock 0x7f0012ab34c0, wanted in Queue.get (queue.py), process python (100)\n" in table(
        waiting_profile(), "lock"
    )
    assert "    released by thread producer (101) in Queue.put" in table(waiting_profile(), "lock")


def test_each_share_is_that_of_the_function() -> None:
    made = ProfileBuilder()
    waiter, hog = made.thread(1, "main"), made.thread(2, "hog")
    waker = made.thread_waker(hog)
    shares = {"rel_a": 50, "rel_b": 40, "rel_c": 4, "rel_d": 3, "rel_e": 2, "rel_f": 1}
    for name, ms in shares.items():
        for line in (1, 2):
            at = [python(name, line=line)]
            behind = [(ms * MS, hog, at)]
            made.wait(waiter, ms * MS, [python("f"), wait("gil")], waker=waker, waker_stack=at, behind=behind)
    text = table(made.build())
    assert "    woken by thread hog (2) in rel_a (train.py), 50%, in rel_b (train.py), 40%," in text
    assert " in rel_d (train.py), 3%, elsewhere, 3%\n" in text
    assert "    GIL held, 50%, by rel_a (train.py:1) of thread hog (2)\n" in text
    assert "of thread hog (2)\n    and 2 others, 3%\n" in text
    assert "in rel_c (train.py:1) of thread hog (2)\n    and 3 others, 6%\n" in text
    assert "    it was in rel_a (train.py), 50%, in rel_b (train.py), 40%, " in table(made.build(), "waker")


def test_who_ended_a_wait_is_never_cut() -> None:
    made = ProfileBuilder()
    waiter, worker, peer = made.thread(1, "main"), made.thread(2, "allreduce"), made.thread(3, "peer")
    by_worker, by_peer = made.thread_waker(worker), made.thread_waker(peer)
    long = [python("receive_the_gradients_of_all_the_others")]
    put = [python("send_the_gradients")]
    made.wait(worker, MS, [*long, wait("net")], waker=by_peer, waker_stack=put)
    made.wait(waiter, 2 * MS, [python("f"), wait("lock")], waker=by_worker, waker_stack=long)
    made.wait(waiter, 2 * MS, [python("f"), wait("lock")])
    assert (
        "    woken by thread allreduce (2) in receive_the_gradients_of_all_the_others (train.py), 50%,\n"
        "      not known 50%\n"
        "      why it was late: net in receive_the_gradients_of_all_the_others (train.py),\n"
        "        ended by thread peer (3) in send_the_gradients (train.py), 100%\n"
    ) in table(made.build())


def test_a_lock_of_a_file_is_one_for_all_processes() -> None:
    made = ProfileBuilder()
    for pid in (100, 200):
        made.wait(made.thread(pid, pid=pid), MS, [python("f"), native("flock"), wait("file-lock")], object=1)
    text = table(replace(made.build(), objects=("/a/\x1b[31mlock",)), "lock")
    assert "in 1 group" in text and "lock of /a/?[31mlock, wanted in f" in text.replace("\ufffd", "?")
    assert "waits without a lock" not in text


def test_a_timer_releases_no_lock() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(1), MS, [python("f"), wait("lock")], waker=made.waker("timer"), lock=5)
    assert "\n    ended by a timer, 100%\n" in table(made.build(), "lock")


def test_frames_of_the_scheduler_are_passed_over() -> None:
    made = ProfileBuilder()
    stack = [kernel("kthread"), kernel("worker_thread"), kernel("schedule"), kernel("__schedule")]
    made.wait(made.thread(1), MS, [*stack, wait("sleep")])
    assert "\nsleep in worker_thread_[k]\n" in table(made.build())
    assert "\n    worker_thread_[k] < kthread_[k]\n" in table(made.build())


def test_the_caller_in_the_user_s_own_code_and_what_was_waited_for() -> None:
    """Two functions that call the same library are told apart, however deep it is."""
    made = ProfileBuilder()
    library = [python(f"a_function_with_a_long_name_{i}", "/v/site-packages/lib/a.py", 10) for i in range(12)]
    for ms, function, number in ((5, "slow_query", 1), (4, "row_lock", 0)):
        stack = [python(function, "/srv/app.py", 16), *library, native("poll", "libc.so.6"), wait("poll")]
        made.wait(made.thread(ms), ms * MS, stack, object=number)
    text = table(replace(made.build(), objects=("10.0.0.5:5432",)))
    assert " < … < slow_query (app.py:16)\n" in text and " < … < row_lock (app.py:16)\n" in text
    assert text.count("\n    waiting for 10.0.0.5:5432 (PostgreSQL)\n") == 1


def test_waits_without_a_known_length() -> None:
    made = ProfileBuilder()
    values = {"wait": 0, "status": Status.NOT_SAMPLED, "count": 3}
    made.wait(made.thread(1), 9 * MS, [Frame(FrameKind.NOT_SAMPLED), wait("lock")], **values)
    text = table(made.build())
    assert (
        "\nwaiting for a lock in [not sampled]\n  9.00 ms 100.0%         3  3.00 ms        -        -        -\n"
        in text
    )


def test_why_no_function_is_known_is_said_once() -> None:
    made = ProfileBuilder()
    cut = [Frame(FrameKind.TRUNCATED, "stack not taken"), wait("lock")]
    made.wait(made.thread(1), 5 * MS, cut)
    kernel_thread = made.thread(2)
    made.wait(kernel_thread, 4 * MS, [Frame(FrameKind.TRUNCATED, "no Python frames"), wait("sleep")])
    made.wait(made.thread(3), 3 * MS, [wait("sleep")])
    made.threads[kernel_thread] = replace(made.threads[kernel_thread], is_kernel_thread=True)
    lines = render_off_cpu(made.build(), RenderOptions(by="stack")).splitlines()
    headings = [line for line in lines if " in (" in line]
    assert headings == [
        "waiting for a lock in (no function: stack not taken)",
        "sleep in (a kernel thread)",
        "sleep in (no function)",
    ]
    assert not any("[truncated" in line for line in lines)
    by_function = render_off_cpu(made.build(), RenderOptions(by="function"))
    assert "\n(no function)\n" in by_function and "42% in [truncated: stack not taken]" in by_function


def test_several_threads_of_a_group() -> None:
    made = ProfileBuilder()
    for tid in range(1, 7):
        made.wait(made.thread(tid, "t"), tid * MS, [python("f"), wait("lock")])
    line = "    process python (100): thread t (6) 29%; thread t (5) 24%; thread t (4) 19%; and 3 more"
    assert f"\n{line}\n" in table(made.build())
    made.wait(made.thread(9, "t", pid=101), 70 * MS, [python("f"), wait("lock")])
    assert "\n    2 processes: thread t (9) 77%; thread t (6) 7%; " in table(made.build())


def test_idle_waits_come_last_with_their_total_or_not_at_all() -> None:
    text = table(waiting_profile())
    assert text.index("\nidle (threads with nothing to do): 1.900 s in 1 group\n") > text.index(
        "\nwaiting for the GIL in "
    )
    text = table(waiting_profile(), hide_idle=True)
    assert text.count("idle") == 1 and " in 4 groups; idle ones hidden, 1.900 s\n" in text


def test_what_is_not_shown_is_said() -> None:
    text = table(waiting_profile(), limit=3)
    assert "\nand 1 more group, together 39.30 ms (--limit shows more)\n" in text
    assert "short waits under 100 us, which have no stack: 1, together 60.00 ms" in text
    nothing = replace(ProfileBuilder().build(), filter_text=", of 1,000 us or more")
    assert "\nno waits, of 1,000 us or more\n" in table(nothing)


def test_what_was_asked_for_is_said() -> None:
    asked = replace(waiting_profile(), filter_text=", thread a\x1b, reason disk")
    assert "\nwaits by reason, thread a?, reason disk: " in table(asked, "reason")
    assert "\nonly thread a?, reason disk\n" in render_table(asked, OPTIONS)
    long = replace(asked, filter_text=", thread " + "x" * 80 + ", function " + "y" * 80)
    assert all(columns(line) <= 100 for text in (table(long), render_table(long, OPTIONS)) for line in text.split("\n"))


@pytest.mark.parametrize(
    ("counts", "shown", "plain"),
    [([1], "█", "@"), ([8, 0, 1, 4], "█ ▁▄", "@ .="), ([1_000_000, 1], "█▁", "@."), ([0, 0], "  ", "  ")],
)
def test_bars(counts: list[int], shown: str, plain: str) -> None:
    assert (bars(counts, False), bars(counts, True)) == (shown, plain)


def test_a_histogram_has_its_ends_and_fits() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for power in range(40):
        made.wait(thread, 100 << power, [wait("lock")])
    (group,) = group_waits(made.build(), "reason", 1).groups
    for room in (60, 30, 20):
        line = histogram_line(group, room, False)
        assert line.startswith("100ns ") and line.endswith(" 54976s") and len(line) <= room
        assert sum(char in "▁▂▃▄▅▆▇█" for char in line) >= 1


def test_the_summary_tells_who_held_the_gil() -> None:
    text = render_table(waiting_profile(), OPTIONS)
    assert (
        "waits for the GIL\n"
        "MainThread (100): 59.00 ms for the GIL; held 93% in hog_gil (oracle.py:12) of thread hog (102)\n"
        "    5% in Queue.put (queue.py:130) of thread producer (101)\n"
        "    2% by a holder that is not known\n"
    ) in text


def test_the_summary_shares_out_the_time_off_the_cpu() -> None:
    text = render_table(waiting_profile(), OPTIONS)
    assert "\nMainThread          100   1.596   1.596       0 ns  lock 1.540 (98%), gil 0.039 (2%)\n" in text
    made = ProfileBuilder()
    made.wait(made.thread(1, "gappy"), 1_000 * MS, [wait("lock")])
    made.threads[0] = replace(made.threads[0], last_ns=1_001 * MS)
    assert "\ngappy                 1   1.000   1.001   -1.00 ms  lock 1.000 (100%)\n" in render_table(
        made.build(), OPTIONS
    )


def test_waits_without_a_stack_are_in_the_quality_line() -> None:
    line = quality_line(waiting_profile())
    assert "; 12,345 waits under 0.1 ms: time counted, no stack (0.9% of wall time); " in line
    assert "; stacks of 7 waits estimated from others of their thread; " in line
