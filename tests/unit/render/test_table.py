import re
from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.render.columns import width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.quality import quality_line
from bpfprof.render.table import render_table
from tests.unit.render.profiles import (
    INFO,
    MS,
    OFF_CPU,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    kernel,
    native,
    python,
    training_profile,
    wait,
)

OPTIONS = RenderOptions()


def wide_profile():
    """Long names in double-width characters, long times, 40 threads."""
    made = ProfileBuilder(info=replace(INFO, command_line=("python", "長" * 200)))
    for tid in range(4_194_300, 4_194_340):
        thread = made.thread(tid, "長い名前" * 5, 4_194_300, "プロセス" * 5)
        stack = [python("関数" * 60, f"/srv/{'道' * 60}.py", 10**6)]
        made.spend(thread, ON_CPU, (tid % 97) * 10**13, stack)
        made.spend(thread, OFF_CPU, 10**14, [*stack, wait("理由" * 20)])
    return made.build()


@pytest.mark.parametrize("profile", [training_profile, hostile_profile, deep_profile, empty_profile])
def test_fits_a_terminal_and_ends_with_the_quality_line(profile) -> None:
    text = render_table(profile(), OPTIONS)
    assert all(line.isprintable() and len(line) <= 100 for line in text.split("\n"))
    last = " ".join(text.rstrip("\n").split("\n\n")[-1].split())
    assert last.replace(" ", "") == quality_line(profile()).replace(" ", "")


def test_double_width_characters_fit_too() -> None:
    lines = render_table(wide_profile(), OPTIONS).split("\n")
    assert max(sum(2 if ord(char) > 0x2E80 else 1 for char in line) for line in lines) <= 100
    assert any(line.startswith("and 10 more threads") for line in lines)


def test_every_reason_of_a_thread_is_there_and_every_thread_is_counted() -> None:
    made = ProfileBuilder()
    for tid in range(1, 34):
        thread = made.thread(tid, f"worker-{tid}")
        for ms, reason in enumerate(("child", "syscall rt_sigtimedwait", "syscall io_uring_enter", "gil", "lock"), 1):
            made.spend(thread, OFF_CPU, ms * MS, [wait(reason)])
    last = made.threads[-1]
    made.threads[-1] = replace(last, last_ns=last.last_ns + 2 * MS)
    block = render_table(made.build(), OPTIONS).split("\n\n")[2].split("\n")
    indent = " " * 52
    assert block[2:6] == [
        "worker-1              1   0.015   0.015       0 ns  lock 0.005 (33%), gil 0.004 (27%),",
        f"{indent}syscall io_uring_enter 0.003 (20%),",
        f"{indent}syscall rt_sigtimedwait 0.002 (13%),",
        f"{indent}child 0.001 (7%)",
    ]
    assert block[-1] == "and 3 more threads, together 45.00 ms off the CPU, difference -2.00 ms"


@pytest.mark.parametrize(("waited_ms", "is_said"), [(10_000, True), (600, True), (100, False)])
def test_how_much_of_the_time_on_a_cpu_only_waited_has_a_column(waited_ms: int, is_said: bool) -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(4_194_300, "長い名前" * 5, 4_194_300, "プロセス" * 5), made.thread(101, "worker")
    made.spend(waiter, ON_CPU, waited_ms * MS, [python("f"), native("cuStreamSynchronize", "/usr/lib/libcuda.so.1")])
    made.spend(waiter, ON_CPU, (20_000 - waited_ms) * MS, [python("f")])
    made.spend(worker, ON_CPU, 30_000 * MS, [python("f")])
    text = render_table(made.build(), RenderOptions(details=True))
    assert max(map(width, text.split("\n"))) <= 100
    (block,) = (it.split("\n") for it in text.split("\n\n") if it.startswith("process"))
    assert ("on-CPU s waited" in block[0]) is is_said
    first, second = ([*re.split(r"\)", line, maxsplit=1)][1].split() for line in block[1:])
    assert first[:5] == ["worker", "101", "30.000", "30.000", "100%"] and (first[5] == "-") is is_said
    assert second[4] == "100%" and (not is_said or second[5] == f"{waited_ms // 200}%")


def test_threads_are_sorted_by_activity() -> None:
    rows = [line for line in render_table(training_profile(), OPTIONS).split("\n") if line.startswith("python (")]
    assert [row.split(" (100)")[1].split()[0] for row in rows] == ["MainThread", "io", "pool"]


def rows_below(title: str, profile: Profile) -> list[list[str]]:
    (block,) = (it for it in render_table(profile, OPTIONS).split("\n\n") if it.startswith(title))
    return [re.split("  +", line.strip()) for line in block.split("\n")[2:]]


def test_time_goes_to_the_innermost_python_function_with_its_lines_merged() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 3 * MS, [python("f", line=1), native("memcpy"), kernel("page_fault")])
    made.spend(thread, ON_CPU, 4 * MS, [python("f", line=2)])
    made.spend(thread, OFF_CPU, 5 * MS, [python("f", line=3), native("read"), wait("disk")])
    made.spend(thread, ON_CPU, 1 * MS, [native("start_thread"), native("worker"), kernel("page_fault")])
    made.spend(thread, ON_CPU, 2 * MS, [Frame(FrameKind.NOT_SAMPLED)])
    assert rows_below("CPU: self time", made.build()) == [
        ["0.007", "70.0%", "0.005", "f (train.py)"],
        ["0.001", "10.0%", "0.000", "worker (libc.so.6)"],
    ]


def test_waits_are_added_up_by_reason_and_function() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for ms, line, reason in [(3, 1, "gil"), (9, 2, "gil"), (5, 1, "lock")]:
        made.spend(thread, OFF_CPU, ms * MS, [python("f", line=line), native("wait"), wait(reason)])
    assert rows_below("top waits", made.build()) == [
        ["0.012", "2", "9.00 ms", "gil", "f (train.py)"],
        ["0.005", "1", "5.00 ms", "lock", "f (train.py)"],
    ]


def test_waits_without_a_function_go_by_half_of_their_time() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, OFF_CPU, 9 * MS, [Frame(FrameKind.TRUNCATED, "stack not taken"), wait("gil")])
    made.spend(thread, OFF_CPU, 5 * MS, [python("f"), wait("gil")])
    made.spend(thread, OFF_CPU, 4 * MS, [python("g"), wait("gil")])
    functions = [row[-1] for row in rows_below("top waits", made.build())]
    assert functions == ["f (train.py)", "(no function: stack not taken)", "g (train.py)"]


def test_longest_wait_names_its_thread_and_functions() -> None:
    text = render_table(training_profile(), OPTIONS)
    assert "longest wait: 1.749 s, lock, thread pool" in text
    assert "\n  in pthread_cond_wait (libc.so.6)\n" in text
    assert "longest wait" not in render_table(empty_profile(), OPTIONS)


def test_unfinished_recording_is_said_plainly() -> None:
    assert "UNFINISHED RECORDING" in render_table(hostile_profile(), OPTIONS)


def test_says_whose_python_is_not_read() -> None:
    unread = {"PyPy 7.3.11 is not CPython": tuple(f"pypy3 ({pid})" for pid in range(10, 17)), "no": ("a\nb (1)",)}
    text = " ".join(render_table(replace(training_profile(), info=replace(INFO, unread=unread)), OPTIONS).split())
    assert "pypy3 (13), pypy3 (14) and 2 more: PyPy 7.3.11 is not CPython; their stacks have no Python frames" in text
    assert "process a?b (1): no; its stacks have no Python frames" in text
