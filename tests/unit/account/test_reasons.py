"""What a wait is called."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bpfprof.account.reasons import as_waits, wait_reasons
from bpfprof.model.samples import SHORT_DTYPE, WAIT_DTYPE, WAITS_FOR_GIL, FdKind
from bpfprof.model.states import reason_number, reason_text
from bpfprof.model.syscalls import syscall_name, syscall_numbers

GIL_START, GIL_BYTES = 0x7F00_0000_1000, 96
UNISTD = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
INTERRUPTIBLE, UNINTERRUPTIBLE = 1, 2


def reason(call: str | int, *args: int, task_state: int = INTERRUPTIBLE, gil: tuple[int, int] = (0, 0), **rest) -> str:
    """The word for one wait in a system call (-1: in none); `rest`: more columns."""
    row = np.zeros(1, WAIT_DTYPE)
    row["syscall"] = call if isinstance(call, int) else next(iter(syscall_numbers(call)))
    row["args"] = [*args, 0, 0, 0][:3]
    for name, value in {"task_state": task_state, **rest}.items():
        row[name] = value
    found = wait_reasons(row, np.array([gil[0]], np.uint64), np.array([sum(gil)], np.uint64))
    return reason_text(int(found[0]))


@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [
        ("read", FdKind.PIPE, "pipe"),
        ("writev", FdKind.PIPE, "pipe"),
        ("read", FdKind.SOCKET, "net"),
        ("pread64", FdKind.FILE, "disk"),
        ("ioctl", FdKind.DEVICE, "device"),
        ("ioctl", FdKind.UNKNOWN, "syscall ioctl"),
        ("recvfrom", FdKind.SOCKET, "net"),
        ("futex", FdKind.UNKNOWN, "lock"),
    ],
)
def test_descriptors_tell_more(call: str, kind: FdKind, expected: str) -> None:
    assert reason(call, fd_kind=kind) == expected


@pytest.mark.parametrize(
    ("expected", "calls"),
    [
        ("lock", "futex futex_waitv futex_wait semop semtimedop"),
        ("file-lock", "flock"),
        ("kernel-lock", "mmap munmap mprotect"),
        ("sleep", "nanosleep clock_nanosleep restart_syscall pause rt_sigtimedwait rt_sigsuspend"),
        ("disk", "fsync fdatasync io_getevents"),
        ("net", "connect accept4 recvfrom sendmsg"),
        ("pipe", "msgrcv mq_timedreceive"),
        ("poll", "poll ppoll select pselect6 epoll_wait epoll_pwait"),
        ("child", "wait4 waitid vfork clone clone3"),
    ],
)
def test_reasons(expected: str, calls: str) -> None:
    assert {call: reason(call, 3, 2) for call in calls.split()} == dict.fromkeys(calls.split(), expected)


def test_other_calls_keep_their_names() -> None:
    for call in ("ioctl", "read", "io_uring_enter", "openat", "getrandom"):
        assert reason(call, 3) == f"syscall {call}"
    assert [reason(461), reason(3000), reason(-1)] == ["syscall lsm_list_modules", "syscall 3000", "unknown"]
    assert [reason("fcntl", 3, command) for command in (7, 38, 3)] == ["file-lock", "file-lock", "syscall fcntl"]


def test_a_wait_for_no_descriptor_is_sleep() -> None:
    assert reason("select", 0) == reason("pselect6", 0) == "sleep"
    assert reason("poll", 0x1000, 0) == reason("ppoll", 0x1000, 0) == "sleep" and reason("poll", 0, 2) == "poll"
    assert reason("epoll_wait", 0, 0) == "poll", "its first arguments are something else"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (GIL_START - 1, "lock"),
        (GIL_START, "gil"),
        (GIL_START + 40, "gil"),
        (GIL_START + GIL_BYTES - 1, "gil"),
        (GIL_START + GIL_BYTES, "lock"),
        (0, "lock"),
    ],
)
def test_a_futex_inside_the_gil_is_the_gil(address: int, expected: str) -> None:
    assert reason("futex", address, gil=(GIL_START, GIL_BYTES)) == expected


def test_only_a_futex_waits_for_the_gil() -> None:
    assert reason("read", GIL_START, gil=(GIL_START, GIL_BYTES)) == "syscall read"
    assert reason("futex", 0) == "lock", "a process without a GIL has none at address 0"


def test_sleep_that_no_signal_ends_is_disk_where_no_better_word_is_known() -> None:
    assert reason("read", 3, task_state=UNINTERRUPTIBLE) == "disk"
    assert reason("openat", 3, task_state=UNINTERRUPTIBLE | 0x80) == "disk"
    assert reason("futex", 3, task_state=UNINTERRUPTIBLE) == "lock"
    assert reason("nanosleep", 3, task_state=UNINTERRUPTIBLE) == "sleep"
    assert [reason(-1, task_state=state) for state in (0x2, 0x102, 0x2102)] == ["pagefault"] * 3


def test_many_rows_at_once_each_with_its_own_gil() -> None:
    rows = np.zeros(3, WAIT_DTYPE)
    rows["syscall"] = next(iter(syscall_numbers("futex")))
    rows["args"][:, 0] = [100, 100, 200]
    starts, ends = np.array([100, 200, 200], np.uint64), np.array([110, 210, 210], np.uint64)
    assert [reason_text(number) for number in wait_reasons(rows, starts, ends)] == ["gil", "lock", "gil"]
    assert len(wait_reasons(rows[:0], starts[:0], ends[:0])) == 0


@pytest.mark.skipif(not UNISTD.exists(), reason=f"no {UNISTD}")
def test_system_calls_have_the_names_of_the_kernel_headers() -> None:
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", UNISTD.read_text())}
    assert len(numbers) > 300
    assert {name: syscall_name(number) for name, number in numbers.items()} == {name: name for name in numbers}


def test_a_call_that_is_not_in_the_table_keeps_its_number() -> None:
    assert syscall_name(400) == "400" and syscall_name(0) == "read"
    with pytest.raises(KeyError):
        syscall_numbers("no_such_call")


@pytest.mark.parametrize("call", ["io_uring_enter", "ioctl", "exit_group", "getrandom", "membarrier"])
def test_calls_that_wait_for_no_disk_keep_their_name(call: str) -> None:
    assert reason(call, 3, task_state=UNINTERRUPTIBLE) == f"syscall {call}"


def test_a_sleep_without_load_is_no_disk() -> None:
    assert reason("openat", 3, task_state=UNINTERRUPTIBLE | 0x400) == "syscall openat"


@pytest.mark.parametrize("task_state", [4, 8, 4 | UNINTERRUPTIBLE])
@pytest.mark.parametrize("call", ["futex", "read", "nanosleep", -1])
def test_what_a_signal_or_a_debugger_stopped_is_stopped_whatever_it_did(call: str | int, task_state: int) -> None:
    assert reason(call, GIL_START, task_state=task_state, gil=(GIL_START, GIL_BYTES)) == "stopped"


@pytest.mark.parametrize("call", ["poll", "select", "epoll_wait"])
def test_waiting_for_one_device_is_waiting_for_a_device(call: str) -> None:
    assert reason(call, 3, 1, fd_kind=FdKind.DEVICE) == "device"


def test_the_kernel_side_knows_what_waits_for_a_gil() -> None:
    assert reason("futex", flags=WAITS_FOR_GIL) == "gil"


@pytest.mark.parametrize(
    ("call", "arg", "expected"),
    [("select", 0, "sleep"), ("select", 4, "poll"), ("poll", 0, "poll"), ("fcntl", 3, "syscall fcntl")],
)
def test_short_waits_know_one_argument_at_most(call: str, arg: int, expected: str) -> None:
    rows = np.zeros(1, SHORT_DTYPE)
    rows["syscall"], rows["arg"], rows["task_state"] = next(iter(syscall_numbers(call))), arg, INTERRUPTIBLE
    none = np.zeros(1, np.uint64)
    assert reason_text(int(wait_reasons(as_waits(rows), none, none)[0])) == expected


def test_every_word_has_its_number() -> None:
    for word in ("gil", "pagefault", "unknown", "syscall ioctl"):
        assert reason_text(reason_number(word)) == word
    assert reason_text(0) == ""
