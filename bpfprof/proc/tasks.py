"""Processes and threads as /proc tells them: ids in, names, states and counters out. A task that is gone is a miss."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple

from bpfprof.dataclass import dataclass
from bpfprof.model.ids import Pid, RuntimeAddress, Tid
from bpfprof.proc.living import has_ended, living
from bpfprof.proc.reader import reader
from bpfprof.proc.text import without_controls

_READ_LIMIT_BYTES = 64 << 10
_COMMAND_LINE_LIMIT_BYTES = 4 << 10
_SYSCALL_ARGUMENT_COUNT = 6
_ENVIRONMENT_LIMIT_BYTES = 1 << 20
# What launchers number their processes by, the best first: torchrun, MPI, Slurm, Paddle, MindSpore.
_RANKS = (
    "RANK OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK MV2_COMM_WORLD_RANK PADDLE_TRAINER_ID RANK_ID SLURM_PROCID LOCAL_RANK"
)
_RANK = re.compile(rb"(?:^|\0)(" + "|".join(_RANKS.split()).encode() + rb")=(\d{1,9})(?=\0|$)")


@dataclass(frozen=True)
class BlockedSyscall:
    """Where a thread is blocked. `number` is -1, and `args` are 0, when it is blocked outside a system call."""

    number: int
    args: tuple[int, ...]
    stack_pointer: RuntimeAddress
    program_counter: RuntimeAddress


@dataclass(frozen=True)
class ThreadStatus:
    """`run_state` is the letter of proc(5): R running or runnable, S and D sleeping, T stopped, Z dead.

    Unchanged `switches` (voluntary and not) mean that the thread has not run in between. `namespace_tids`: its id in
    each pid namespace, ours first, its own last. `uid` is the effective user.
    """

    run_state: str
    switches: int
    uid: int
    namespace_tids: tuple[int, ...]


@dataclass(frozen=True)
class ProcessUsage:
    """What a process and its threads have used since it was born, those that have ended included."""

    minor_faults: int
    major_faults: int
    user_ns: int  # by the clock's ticks
    kernel_ns: int


# The order of the fields is that of fs/proc/array.c; what is between them differs. A name has no line ends.
_STATUS = re.compile(
    rb"\nState:\t([A-Za-z]).*?\nUid:\t\d+\t(\d+)\t.*?\nNSpid:((?:\t\d+)+)\n"
    rb".*\nvoluntary_ctxt_switches:\t(\d+)\nnonvoluntary_ctxt_switches:\t(\d+)\n",
    re.DOTALL,
)
_CAUGHT = re.compile(rb"\nSigCgt:\t([0-9a-f]+)\n")
# The C library has some of the others for itself. Bit n - 1 is signal n.
_STANDARD_SIGNALS = (1 << 31) - 1
_NOT_HANDLERS = sum(
    1 << (number - 1)
    for number in (signal.SIGINT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
)
_RELATIVES_LIMIT = 256
_PF_FORKNOEXEC = 0x40  # include/linux/sched.h
_PF_KTHREAD = 0x00200000  # include/linux/sched.h (Linux 6.1)


def list_processes() -> list[Pid]:
    """Every process there is, ascending; kernel threads too."""
    return sorted(Pid(int(name)) for name in os.listdir("/proc") if name.isdecimal())


def is_kernel_thread(pid: Pid) -> bool:
    """False also when it is gone."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return bool(fields) and bool(int(fields[6]) & _PF_KTHREAD)


def is_forked(pid: Pid) -> bool:
    """Whether it has run no other program since it was forked, and so has its parent's memory."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return bool(fields) and bool(int(fields[6]) & _PF_FORKNOEXEC)


def has_died(pid: Pid) -> bool:
    """Whether its first thread is dead and still there: all of a zombie, but not of one whose other threads go on."""
    return has_ended(f"/proc/{pid}/stat")


def list_threads(pid: Pid) -> list[Tid]:
    """Ascending; empty when the process is gone."""
    try:
        return sorted(Tid(int(name)) for name in os.listdir(f"/proc/{pid}/task") if name.isdecimal())
    except OSError:
        return []


def list_living_threads(pid: Pid) -> list[Tid]:
    """The same without a first thread that has ended before the others."""
    dead = {Tid(pid)} if has_died(pid) else set()
    return [tid for tid in list_threads(pid) if tid not in dead]


def process_name(pid: Pid) -> str:
    """The comm of the main thread, at most 15 bytes; "" when the process is gone."""
    return _read_name(f"/proc/{pid}/comm")


def thread_name(pid: Pid, tid: Tid) -> str:
    """The comm of one thread; "" when it is gone."""
    return _read_name(f"/proc/{pid}/task/{tid}/comm")


def process_command_line(pid: Pid) -> list[str]:
    """Its arguments, the first 4 KiB of them; empty for a kernel thread or when the process is gone."""
    raw = _ask(pid, f"/proc/{living(pid)}/cmdline", _COMMAND_LINE_LIMIT_BYTES)
    # Lines of a program that is given with -c stay apart.
    in_one_line = raw.translate(bytes.maketrans(b"\t\n\v\f\r", b"     "))
    return [without_controls(part) for part in in_one_line.removesuffix(b"\0").split(b"\0")] if raw else []


def process_rank(pid: Pid) -> str:
    """Its number among processes that are alike, as it was started with: `RANK=1`. "": its environment, of which the
    first MiB is read, has none."""
    found = dict(_RANK.findall(_ask(pid, f"/proc/{living(pid)}/environ", _ENVIRONMENT_LIMIT_BYTES)))
    names = [name for name in _RANKS.split() if name.encode() in found]
    return f"{names[0]}={int(found[names[0].encode()])}" if names else ""


def children(pid: Pid) -> list[Pid]:
    """Processes that the threads of a process have forked and that still run; [] when there are none or it is gone."""
    found: list[Pid] = []
    for tid in list_threads(pid):
        data = _read(f"/proc/{pid}/task/{tid}/children")
        found += [Pid(int(word)) for word in data.split() if word.isdigit()]
    return found


def with_descendants(pids: Iterable[Pid]) -> list[Pid]:
    """These, each once, and then all that they and their children have forked and that still run."""
    found = dict.fromkeys(pids)
    left = list(found)
    while left:
        new = [child for child in children(left.pop()) if child not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)


def parent(pid: Pid) -> Pid | None:
    """None when it is gone or its parent is in no pid namespace of ours."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return Pid(int(fields[1])) if fields and int(fields[1]) else None


def relatives(pid: Pid) -> list[Pid]:
    """Its parent, the parent's other children, and its own; 256 at most."""
    above = parent(pid)
    found = [*children(pid), *([above, *children(above)] if above else [])]
    return [each for each in dict.fromkeys(found) if each != pid][:_RELATIVES_LIMIT]


def above_own() -> list[int]:
    """The process that started bpfprof, the one that started that, and so on."""
    found: list[int] = []
    above: Pid | None = Pid(os.getppid())
    while above and above not in found:
        found.append(above)
        above = parent(above)
    return found


def own_processes() -> set[Pid]:
    """bpfprof itself, and the sudo that runs it, which may be two processes."""
    found = [Pid(os.getpid())]
    above = Pid(os.getppid())
    while process_name(above) == "sudo" and above not in found:
        found.append(above)
        above = parent(above) or above
    return {*found}


def stack_start(pid: Pid) -> int:
    """Address where the stack of its first thread begins, another after each execve; 0: not known."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return int(fields[25]) if len(fields) > 25 else 0


def start_time_ticks(pid: Pid) -> int | None:
    """Start after boot in clock ticks (sysconf SC_CLK_TCK); with the pid it names a process for good."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    return int(fields[19]) if fields else None


def running_program(pid: Pid) -> tuple[int, ...]:
    """The same for as long as a process runs one program: when it was born, where code and stack begin; () is none.

    The kernel puts the stack elsewhere at each execve() (startcode, startstack and starttime of proc(5)).
    """
    fields = _stat_fields(f"/proc/{pid}/stat")
    return tuple(int(fields[number]) for number in (19, 23, 25)) if len(fields) > 25 else ()


def process_usage(pid: Pid) -> ProcessUsage | None:
    """None when it is gone."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    if len(fields) < 13:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ProcessUsage(int(fields[7]), int(fields[9]), int(fields[11]) * tick_ns, int(fields[12]) * tick_ns)


def used_since(before: Mapping[Pid, ProcessUsage | None], pids: Iterable[Pid]) -> dict[str, list[int]]:
    """The fields of ProcessUsage for each of `pids` that is there; those that are not in `before` had used nothing."""
    used = {}
    for pid in pids:
        now, then = process_usage(pid), before.get(pid)
        if now is not None:
            values, less = astuple(now), astuple(then) if then else (0, 0, 0, 0)
            used[str(pid)] = [max(0, value - one) for value, one in zip(values, less)]
    return used


def busiest_first(pids: Iterable[Pid]) -> list[Pid]:
    """By the share of a CPU that each has used since it began; those that run now before all others."""
    now_ticks, ranks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"), {}
    for pid in pids:
        fields = _stat_fields(f"/proc/{pid}/stat")
        if len(fields) > 19:  # state, utime, stime and starttime of proc(5)
            share = (int(fields[11]) + int(fields[12])) / max(1.0, now_ticks - int(fields[19]))
            ranks[pid] = fields[0] == b"R", share
    return sorted(ranks, key=lambda pid: ranks[pid], reverse=True)


def thread_status(pid: Pid, tid: Tid) -> ThreadStatus | None:
    """None when the thread is gone."""
    found = _STATUS.search(_read(f"/proc/{pid}/task/{tid}/status"))
    if found is None:
        return None
    state, uid, tids, voluntary, involuntary = found.groups()
    return ThreadStatus(state.decode(), int(voluntary) + int(involuntary), int(uid), tuple(map(int, tids.split())))


def handles_signals(pid: Pid) -> bool:
    """Whether a signal that may come calls a function of the program, or that is not known; SIGINT and faults apart."""
    found = _CAUGHT.search(_read(f"/proc/{pid}/status"))
    if found is None:
        return True
    caught = int(found[1], 16) & ~_NOT_HANDLERS & _STANDARD_SIGNALS
    return caught not in (0, 1 << (signal.SIGCHLD - 1)) or (caught > 0 and bool(children(pid)))


def blocked_syscall(pid: Pid, tid: Tid) -> BlockedSyscall | None:
    """What the thread is blocked in; None when it runs, is gone, or the kernel does not tell."""
    fields = _ask(pid, f"/proc/{pid}/task/{tid}/syscall").split()
    try:
        if len(fields) == 3 and fields[0] == b"-1":
            arguments: tuple[int, ...] = (0,) * _SYSCALL_ARGUMENT_COUNT
        elif len(fields) == 3 + _SYSCALL_ARGUMENT_COUNT:
            arguments = tuple(int(field, 16) for field in fields[1:-2])
        else:
            return None
        stack_pointer, program_counter = int(fields[-2], 16), int(fields[-1], 16)
        return BlockedSyscall(int(fields[0]), arguments, RuntimeAddress(stack_pointer), RuntimeAddress(program_counter))
    except ValueError:
        return None


def kernel_functions(pid: Pid, tid: Tid) -> list[str]:
    """Functions of the kernel that the thread sleeps in, leaf first; [] when it runs, is gone, or we may not know.

    A line of proc(5) stack is `[<0>] FUNCTION+0xOFFSET/0xSIZE [MODULE]`; without CONFIG_STACKTRACE there is no file.
    """
    lines = _ask(pid, f"/proc/{pid}/task/{tid}/stack").decode("ascii", "replace").splitlines()
    return [line.split()[1].partition("+")[0] for line in lines if len(line.split()) > 1]


def waits_in(pid: Pid, tid: Tid) -> str:
    """The function of the kernel that the thread sleeps in (proc(5), wchan); "": it is not told."""
    return _read(f"/proc/{pid}/task/{tid}/wchan").decode("ascii", "replace")


def scheduler_times(pid: Pid, tid: Tid) -> tuple[int, int] | None:
    """(nanoseconds on a CPU, and on the run queue) by the scheduler, which brings them up to date now and then.

    None when it is gone or the kernel was built without CONFIG_SCHED_INFO.
    """
    fields = _read(f"/proc/{pid}/task/{tid}/schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 3 else None


def on_cpu_ns(pid: Pid, tid: Tid) -> int:
    """The first of scheduler_times(); 0 when there are none."""
    return (scheduler_times(pid, tid) or (0, 0))[0]


def last_cpu(pid: Pid, tid: Tid) -> int | None:
    """The CPU a thread runs on or ran on last; None when it is gone."""
    fields = _stat_fields(f"/proc/{pid}/task/{tid}/stat")
    return int(fields[36]) if len(fields) > 36 else None


def scheduler_text(pid: Pid, tid: Tid) -> bytes:
    """/proc/PID/task/TID/sched; b"" when it is gone or the kernel was built without CONFIG_SCHED_DEBUG."""
    return _read(f"/proc/{pid}/task/{tid}/sched")


def file_locks() -> list[list[str]]:
    """The words of each line of /proc/locks, as proc_locks(5) has them, the first 64 KiB."""
    return [line.split() for line in _read("/proc/locks").decode("ascii", "replace").splitlines()]


def namespace_tids(pid: Pid, tid: Tid) -> tuple[int, ...]:
    """The thread's id in each pid namespace, ours first, its own last; empty when the thread is gone."""
    status = thread_status(pid, tid)
    return status.namespace_tids if status else ()


def namespace_pid(pid: Pid) -> int:
    """The pid of a process in its own pid namespace, where that is not ours; else 0, as when it is gone."""
    line = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return int(line[-1]) if len(line) > 1 and line[-1].isdigit() else 0


def _read(path: str, limit: int = _READ_LIMIT_BYTES) -> bytes:
    """At most `limit` bytes; b"" when it cannot be read."""
    parts: list[bytes] = []
    left = limit
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object would cost more than the reading
    except OSError:
        return b""
    try:
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


def _ask(pid: Pid, path: str, limit: int = _READ_LIMIT_BYTES) -> bytes:
    """The same, of what waits for the process: its memory, or the end of an exec of a file that does not answer."""
    try:
        return reader().read_file(pid, path, limit)
    except OSError:
        return b""


def _read_name(path: str) -> str:
    return without_controls(_read(path).removesuffix(b"\n"))


def _stat_fields(path: str) -> list[bytes]:
    """The fields of proc(5) stat from the state (field 3) on; the name before it may hold spaces and brackets."""
    fields = _read(path).rpartition(b")")[2].split()
    return fields if len(fields) >= 20 else []
