"""What kernel frames tell about a wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpfprof.account.kernel_reasons import hint_of
from bpfprof.account.reasons import NO_HINT
from bpfprof.model.samples import FdKind
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.model.statuses import Status
from bpfprof.model.syscalls import syscall_numbers
from tests.unit.profile.views import built, spent_ms
from tests.unit.recording.hand_made import FUTEX, MS, HandMade, Story

FAULT = "asm_exc_page_fault exc_page_fault handle_mm_fault"


def reason(frames: str, call: str = "", task_state: int = 1, **values: object) -> str:
    """Of a wait with these kernel functions on its stack, root first."""
    made = HandMade()
    made.process(100, is_kernel_thread=bool(values.pop("is_kernel_thread", False)))
    kernel = made.file("[kernel]", "kernel")
    numbers = [
        made.native(kernel, (name.replace("~", " "), "", 0, 0), address=index)
        for index, name in enumerate(frames.split())
    ]
    other = made.stack(kernel=[made.native(kernel, ("schedule", "", 0, 0), address=999)])
    stack = made.stack((made.code("f"), 0, 0), kernel=numbers[::-1])
    syscall = next(iter(syscall_numbers(call))) if call else -1
    Story.begin(made).run(MS).block(MS, stack=stack, syscall=syscall, task_state=task_state, **values).run(MS).total()
    Story.begin(made, tid=101).run(MS).block(MS, stack=other).run(MS).total()
    (found,) = spent_ms(built(made, 3), 0, ThreadState.OFF_CPU)
    return found[-1].removeprefix("wait ")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ("", "unknown"),
        (f"{FAULT} filemap_fault folio_wait_bit_common io_schedule", "pagefault"),
        (f"{FAULT} do_swap_page", "pagefault"),
        ("irqentry_exit_to_user_mode get_signal do_group_exit do_exit exit_mm", "syscall exit"),
        ("get_signal do_signal_stop", "stopped"),
        ("exit_to_user_mode get_signal", "stopped"),
        ("get_signal task_work_run __fput ext4_release_file io_schedule", "disk"),
        ("get_signal task_work_run __fput fuse_release filemap_fault", "pagefault"),
        ("ret_from_fork io_wq_worker schedule_timeout", "sleep"),
        ("task_work_run ext4_release_file io_schedule", "disk"),
        ("some_function.isra.0", "unknown"),
    ],
)
def test_outside_a_system_call(frames: str, expected: str) -> None:
    assert reason(frames) == expected


def test_a_sleep_outside_a_call_that_no_signal_ends_is_a_page_fault() -> None:
    assert reason("some_function.isra.0", task_state=2) == "pagefault"


@pytest.mark.parametrize(
    ("frames", "call", "expected"),
    [
        ("do_syscall_64 ksys_read vfs_read io_schedule", "read", "disk"),
        ("do_syscall_64 blk_mq_get_tag", "ioctl", "disk"),
        ("do_syscall_64 do_wait", "ptrace", "child"),
        ("do_syscall_64 vfs_read eventfd_read.cold", "read", "poll"),
        ("do_syscall_64 vfs_read timerfd_read", "read", "sleep"),
        ("do_syscall_64 path_openat fifo_open wait_for_partner", "openat", "pipe"),
        ("do_syscall_64 vm_mmap_pgoff rwsem_down_write_slowpath", "mmap", "kernel-lock"),
        ("do_syscall_64 __mm_populate filemap_fault folio_wait_bit_common io_schedule", "mmap", "disk"),
        ("do_syscall_64 tty_read n_tty_read~[tty]", "read", "device"),
        ("do_syscall_64 unlinkat __mutex_lock.constprop.0", "unlinkat", "kernel-lock"),
        ("do_syscall_64 something_else", "read", "syscall read"),
        ("do_syscall_64 do_futex io_schedule", "futex", "lock"),
    ],
)
def test_inside_a_call_without_a_better_word(frames: str, call: str, expected: str) -> None:
    assert reason(frames, call) == expected


def test_a_descriptor_that_is_known_comes_first() -> None:
    assert reason("do_syscall_64 vfs_read pipe_read", "read", fd_kind=FdKind.SOCKET) == "net"


def test_kernel_threads() -> None:
    assert reason("ret_from_fork kthread worker_thread", is_kernel_thread=True) == "sleep"
    assert reason("ret_from_fork kthread jbd2_journal_commit", is_kernel_thread=True) == "disk"


@pytest.mark.parametrize(
    ("functions", "in_call", "expected"),
    [
        ("fifo_open wait_for_partner do_dentry_open path_openat", True, "pipe"),
        ("eventfd_read vfs_read ksys_read", True, "poll"),
        ("timerfd_read_iter vfs_read", True, "sleep"),
        ("handle_userfault handle_mm_fault exc_page_fault", False, "pagefault"),
        ("ext4_buffered_write_iter vfs_write ksys_write", True, "kernel-lock"),  # the lock's own functions are left out
        ("folio_wait_bit_common ext4_buffered_write_iter vfs_write", True, "disk"),
        ("some_function vfs_write ext4_buffered_write_iter", True, ""),
        ("", True, ""),
    ],
)
def test_a_stack_that_proc_tells(functions: str, in_call: bool, expected: str) -> None:
    found = hint_of(functions.split(), in_call)
    assert (reason_text(found) if found != NO_HINT else "") == expected


def reasons_of_stacks(file: str, function: str, *cut: tuple[str, int]) -> list[str]:
    """Of waits for a futex: in this function, in none that is known, and in stacks that are cut off above what asked
    for it and the line."""
    made = HandMade()
    made.process(100)
    code, front, libc = made.code("f"), made.file(file), made.file("/usr/lib/libc.so.6")
    inner = {
        name: (made.native(libc, ("syscall", "", 0, 0)), made.native(front, (name, "", 0, 0), address=place))
        for place, name in enumerate(("Wait", "Post"))
    }
    known = made.native(front, (function, "", 0, 0), address=100)
    stacks = [
        made.stack((code, 4, 0), native=(*inner["Wait"], known)),
        made.stack((code, 4, 0), native=inner["Post"]),
        *(made.stack((code, line, 0), native=inner[name], native_status=Status.NATIVE_NOT_READY) for name, line in cut),
    ]
    story = Story.begin(made)
    for stack in stacks:
        story.run(MS).block(MS, stack=stack, syscall=FUTEX)
    story.run(MS).total()
    spans = built(made, 20).spans
    assert spans is not None
    waits = spans[spans["state"] == ThreadState.OFF_CPU]
    return [reason_text(reason) for reason in waits["reason"].tolist()]


@pytest.mark.parametrize(
    ("file", "function", "expected"),
    [
        ("/usr/lib/libcuda.so.580.1", "cuStreamSynchronize", "device"),
        ("/srv/jaxlib/libjax_common.so", "jax::PyArray::BlockUntilReady() const", "device"),
        ("/srv/libother.so", "jax::PyArray::BlockUntilReady() const", "lock"),
        ("/usr/lib/libcuda.so.580.1", "cuLaunchKernel", "lock"),
    ],
)
def test_a_futex_in_a_call_of_a_device_is_a_wait_for_it(file: str, function: str, expected: str) -> None:
    assert reasons_of_stacks(file, function) == [expected, "lock"]


def test_cut_stacks_are_told_apart_without_an_order_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy takes ten times as long for that."""
    asked, unique = [], np.unique

    def counted(*given: Any, **values: Any) -> Any:
        asked.append(values.get("axis"))
        return unique(*given, **values)

    monkeypatch.setattr(np, "unique", counted)
    expected = ["device", "lock", "device"]
    assert reasons_of_stacks("/usr/lib/libcuda.so.1", "cuCtxSynchronize", ("Wait", 4)) == expected
    assert not [axis for axis in asked if axis is not None]


def test_a_cut_stack_that_ends_as_whole_ones_of_such_calls_do_waits_for_the_device_too() -> None:
    cut = ("Wait", 4), ("Wait", 6), ("Post", 4)
    assert reasons_of_stacks("/usr/lib/libcuda.so.1", "cuCtxSynchronize", *cut) == [
        *("device", "lock"),
        *("device", "lock", "lock"),
    ]
