"""What the frames of a stack tell about a wait: the kernel's as hints for wait_reasons(), and a device library's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.reasons import NO_HINT
from bpfprof.known.waiting import waits_for_device
from bpfprof.model.grouping import group_numbers
from bpfprof.model.states import reason_number
from bpfprof.model.statuses import Status
from bpfprof.recording.contents import Recording

Hints = npt.NDArray[np.uint16]
Bools = npt.NDArray[np.bool_]
Table = tuple[tuple[str, str], ...]
_LAST = 2  # frames that tell the end of a stack: the system call, and who made it

# Names of kernel functions (Linux 5.18 to 6.12) and the reason of a wait with one of them on its stack. The first line
# that has a function of the stack counts, wherever on the stack that is.
#
# Of a wait in no system call:
_OUTSIDE = (
    ("syscall exit", r"do_exit|do_group_exit|do_coredump"),  # a signal ends it; as the call of that name
    ("stopped", r"do_signal_stop|ptrace_stop|do_freezer_trap|__refrigerator"),
    ("pagefault", r"\w*exc_page_fault|do_user_addr_fault|handle_mm_fault|handle_userfault|get_user_pages\w*"),
    ("pagefault", r"filemap_\w+|folio_wait\w*|do_swap_page|swap_\w+|swapin_\w+|wait_on_page\w*"),
    ("disk", r"io_schedule\w*|submit_bio_wait"),
    ("sleep", r"io_wq\w*_worker|io_sq_thread|vhost_\w+"),  # threads of the kernel that are in a program's process
    ("stopped", r"get_signal"),  # last: it does what was put off, too, as closing files
)
# Of a wait in a call that neither its name nor its descriptor explains, and of kernel threads:
_INSIDE = (
    ("child", r"do_wait|__do_wait|kernel_wait4|kernel_waitid|wait_for_vfork_done"),
    ("pipe", r"pipe_read|pipe_write|anon_pipe_\w+|pipe_wait_\w+|fifo_open|wait_for_partner"),
    ("net", r"sk_wait_data|sk_stream_wait_\w+|sock_alloc_send_pskb|unix_stream_\w+|__skb_wait_for_more_packets"),
    ("net", r"inet_\w+|tcp_\w+|rpc_wait_bit_killable|nfs4?_wait_\w+"),
    ("poll", r"eventfd_read|inotify_read|fanotify_read|signalfd_\w+|do_epoll_wait|do_poll|do_select"),
    ("sleep", r"timerfd_read\w*|do_nanosleep|hrtimer_nanosleep"),
    ("lock", r"futex_wait\w*|__futex_wait"),
    ("file-lock", r"fcntl_setlk|flock_lock_inode\w*|posix_lock_inode\w*"),
    ("device", r"n_tty_\w+|tty_\w+|drm_\w+|amdgpu_\w+|kfd_\w+|nvidia_\w+"),
    ("disk", r"io_schedule\w*|blk_\w+|submit_bio_wait|bit_wait_io|folio_wait\w*|wait_on_page\w*|__wait_on_buffer"),
    ("disk", r"jbd2_\w+|xlog_\w+|xfs_log_\w+|btrfs_wait_\w+|balance_dirty_pages\w*|request_wait_answer"),
    ("kernel-lock", r"rwsem_down_\w+|__mutex_lock\w*|percpu_rwsem_wait|__down_\w+"),
)


# /proc/PID/stack leaves out the scheduler's functions, and those of locks are among them: __sched, and
# stack_trace_consume_entry_nosched() in kernel/stacktrace.c. What calls them is then the leaf; these call them alone,
# and wait for a disk in other functions.
_LEAVES = (
    ("kernel-lock", r"\w+_(buffered|file|dio)_(read|write)_iter|generic_file_\w+_iter|iterate_dir|do_truncate"),
    ("kernel-lock", r"open_last_lookups|filename_create|do_unlinkat|do_rmdir|lock_rename|do_renameat2|chmod_common"),
)


def kernel_hints(recording: Recording) -> tuple[Hints, Hints]:
    """(of a wait outside system calls, inside one), by number of the stack; NO_HINT where no frame tells."""
    names = _kernel_names(recording)
    return _hints(recording, names, _OUTSIDE), _hints(recording, names, _INSIDE)


def hint_of(functions: Iterable[str], in_call: bool) -> int:
    """The same of one stack: its kernel functions as /proc/PID/stack has them, leaf first."""
    table: Table = _INSIDE if in_call else _OUTSIDE
    names = [_plain(function) for function in functions]
    rank = min((_rank(table, name) for name in names), default=len(table))
    if rank == len(table):
        table = _LEAVES
        rank = min((_rank(table, name) for name in names[:1] if in_call), default=len(table))
    return reason_number(table[rank][0]) if rank < len(table) else NO_HINT


@lru_cache(maxsize=1000)
def _rank(table: Table, function: str) -> int:
    """The line that has a plain function; the number of lines where none has."""
    return next((rank for rank, (_, pattern) in enumerate(table) if re.fullmatch(pattern, function)), len(table))


def _plain(function: str) -> str:
    """Without what the compiler or a module adds to its name."""
    return re.split(r"[. ]", function, maxsplit=1)[0]


def _hints(recording: Recording, names: dict[str, list[int]], table: Table) -> Hints:
    stacks = recording.stacks
    hints = np.full(len(stacks) + 1, NO_HINT, np.uint16)
    ranks = np.full(len(recording.natives) + 1, len(table), np.uint8)
    for name, numbers in names.items():
        ranks[numbers] = _rank(table, name)
    chosen = np.flatnonzero(stacks["kernel_count"])
    if not len(chosen):
        return hints
    ends = np.cumsum(stacks["native_count"] + stacks["kernel_count"].astype(np.int64))[chosen]
    counts = stacks["kernel_count"][chosen].astype(np.int64)
    begin = np.cumsum(counts) - counts
    frames = np.repeat(ends - counts - begin, counts) + np.arange(int(counts.sum()))
    best = np.minimum.reduceat(ranks[recording.native_frames["native"][frames]], begin)
    reasons = np.array([*(reason_number(reason) for reason, _ in table), NO_HINT], np.uint16)
    hints[chosen + 1] = reasons[best]
    return hints


def device_stacks(recording: Recording) -> Bools:
    """By number of the stack whether it is in a function of a library that waits for a device."""
    names = recording.names
    paths = {number: file.path for number, file in enumerate(recording.files)}
    files = recording.natives["file"][names["native"].astype(np.int64) - 1]
    marked = [
        waits_for_device(recording.texts[function], paths.get(file, ""))
        for function, file in zip(names["function"].tolist(), files.tolist())
    ]
    natives = names["native"][np.array(marked, np.bool_)]
    stacks = recording.stacks
    found = np.zeros(len(stacks) + 1, np.bool_)
    if len(natives):
        counts = stacks["native_count"].astype(np.int64) + stacks["kernel_count"]
        stack_of = np.repeat(np.arange(len(stacks)), counts)
        frames = recording.native_frames["native"][: len(stack_of)]  # there may be more than stacks have
        found[stack_of[np.isin(frames, natives)] + 1] = True
        found[1:] |= _like_whole(recording, found[1:])
    return found


def _like_whole(recording: Recording, found: Bools) -> Bools:
    """Stacks of which only the inner part is known, and that end as whole ones do that are all found: in the same line
    of Python, and the same last frames."""
    stacks = recording.stacks
    python, native = (stacks[name].astype(np.int64) for name in ("python_count", "native_count"))
    before = np.cumsum(native + stacks["kernel_count"]) - native - stacks["kernel_count"]
    asked = np.flatnonzero((python > 0) & (native >= _LAST))
    lines = recording.python_frames[(np.cumsum(python) - python)[asked]]
    last = [recording.native_frames["native"][before[asked] + back] for back in range(_LAST)]
    first, number = group_numbers([lines["code"], lines["offset"].astype(np.uint32), *last])
    is_whole = stacks["native_status"][asked] == Status.OK
    alike = np.zeros(len(first), np.bool_)
    alike[number[found[asked]]] = True
    alike[number[is_whole & ~found[asked]]] = False
    like: Bools = np.zeros(len(stacks), np.bool_)
    like[asked] = alike[number]
    return like


def _kernel_names(recording: Recording) -> dict[str, list[int]]:
    """Plain function -> numbers of natives."""
    kernel = [index for index, file in enumerate(recording.files) if file.kind == "kernel"]
    names = recording.names
    of_kernel = names[np.isin(recording.natives["file"][names["native"].astype(np.int64) - 1], kernel)]
    found: dict[str, list[int]] = {}
    for native, function in zip(of_kernel["native"].tolist(), of_kernel["function"].tolist()):
        found.setdefault(_plain(recording.texts[function]), []).append(native)
    return found
