"""Recordings that cost more than their size should: each a function of a size, chunks out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bpfprof.model import samples as model
from bpfprof.recording.format import Chunk
from tests.unit.recording.hand_made import MS, START_NS, HandMade, chunk_of, small

Chunks = list[Chunk]
ATTACKS: dict[str, Callable[[int], Chunks]] = {}
FUTEX, SLEEP = 202, 35


def attack(make: Callable[[int], Chunks]) -> Callable[[int], Chunks]:
    ATTACKS[make.__name__] = lambda size: with_totals(make(size))
    return make


def with_totals(chunks: Chunks) -> Chunks:
    """All that a thread did not wait it was on a CPU, unless something else is said."""
    found, taken, count = (chunk_of(chunks, kind) for kind in ("totals", "waits", "threads"))
    if not len(found.arrays["rows"]):
        of_thread, own = len(count.fields["rows"]), taken.arrays["rows"]
        waited = np.bincount(own["thread"], own["blocked_ns"], of_thread).astype(np.int64)
        end_ns = chunks[-1].fields["end_ns"]
        ran = (end_ns - START_NS - waited).clip(0)
        found.arrays["rows"] = rows(
            model.TOTAL_DTYPE,
            of_thread,
            thread=np.arange(of_thread),
            time_ns=end_ns,
            since_ns=end_ns,
            on_cpu_ns=ran,
            state=1,
        )
        number = own["time_ns"].argsort(kind="stable")
        taken.arrays["rows"] = own[number]
    return chunks


def rows(dtype: np.dtype[Any], length: int, /, **values: Any) -> Any:
    made = np.zeros(length, dtype)
    for name, value in values.items():
        made[name] = value
    return made


def with_rows(chunks: Chunks, kind: str, array: Any, texts: list[str] | None = None, name: str = "rows") -> None:
    """In place of those that it has."""
    found = chunk_of(chunks, kind)
    found.arrays[name] = array
    if texts is not None:
        found.fields["texts"] = texts


def base(threads: int = 2, processes: int = 1, end_ns: int = 100_000 * MS, **end: Any) -> HandMade:
    made = HandMade()
    for number in range(processes):
        made.process(100 + number)
    for number in range(threads):
        made.thread(1000 + number, number % processes)
    code = made.code("work", linetable=b"\x80\x00\xd8\x04")
    made.stack((code, 0, 0))
    made.end = {"end_ns": START_NS + end_ns, **end}
    return made


def waits(count: int, threads: int, **values: Any) -> Any:
    """Each thread's one after the other, all of 1 ms."""
    number = np.arange(count, dtype=np.int64)
    times = {"thread": number % threads, "time_ns": START_NS + (number // threads + 1) * 2 * MS}
    usual = {"blocked_ns": MS, "syscall": FUTEX, "task_state": 1, "stack": 1}
    return rows(model.WAIT_DTYPE, count, **{**usual, **times, **values})


@attack
def gil_of_many_holders(n: int) -> Chunks:
    """Threads that wait for a GIL all the time, whose holder has another stack each moment."""
    threads, changes = max(2, n // 20), n
    made = base(threads + 2, end_ns=changes * 2 * MS + MS)
    made.processes[0]["gil"] = [0x7F00, 96]
    code = made.code("holds")
    for number in range(changes):
        made.stack((code, number * 2, 0))
    chunks = made.chunks()
    number = np.arange(changes)
    gil = {"syscall": FUTEX, "flags": model.WAITS_FOR_GIL, "args": (0x7F20, 0, 0), "task_state": 1, "waker_kind": 1}
    seen = rows(
        model.WAIT_DTYPE,
        changes,
        time_ns=START_NS + (number + 1) * 2 * MS,
        blocked_ns=MS,
        thread=1,
        stack=1,
        holder=1,
        holder_stack=number + 2,
        **gil,
    )
    long = rows(
        model.WAIT_DTYPE,
        threads,
        time_ns=START_NS + changes * 2 * MS,
        blocked_ns=changes * 2 * MS,
        stack=1,
        thread=np.arange(threads) + 2,
        **gil,
    )
    with_rows(chunks, "waits", np.concatenate([seen, long]))
    return chunks


@attack
def names_of_one_address_at_many_times(n: int) -> Chunks:
    """A deep stack with an address that has another name at each sample."""
    made = base(1)
    file = made.file("/a/b.so")
    native = made.native(file, ("f", "", 0, 0))
    made.stack((1, 0, 0), native=[native] * 1000)
    chunks = made.chunks()
    number = np.arange(n)
    names = rows(model.NAME_DTYPE, n, native=native, function=1, since_ns=START_NS + number * MS)
    with_rows(chunks, "names", names, ["", "f"])
    taken = rows(model.SAMPLE_DTYPE, n, time_ns=START_NS + number * MS + 5, on_cpu_ns=number * MS, stack=2)
    with_rows(chunks, "samples", taken)
    with_rows(chunks, "stacks", rows(model.NATIVE_INDEX_DTYPE, 60_000, native=native), name="native")
    stacks = chunk_of(chunks, "stacks").arrays["stacks"]
    stacks["native_count"][1] = 60_000
    return chunks


@attack
def functions_inlined_into_each_other(n: int) -> Chunks:
    """An address with many names in a stack that has it many times."""
    made = base(1)
    made.native(made.file("/a/b.so"), ("f", "", 0, 0))
    made.stack((1, 0, 0), native=[1])
    chunks = made.chunks()
    texts = ["", *(f"f{number}" for number in range(n))]
    names = rows(model.NAME_DTYPE, n, native=1, function=np.arange(n) + 1, flags=model.NAME_INLINED)
    with_rows(chunks, "names", names, texts)
    with_rows(chunks, "stacks", rows(model.NATIVE_INDEX_DTYPE, 60_000, native=1), name="native")
    chunk_of(chunks, "stacks").arrays["stacks"]["native_count"][1] = 60_000
    with_rows(chunks, "samples", rows(model.SAMPLE_DTYPE, 1, time_ns=START_NS + MS, on_cpu_ns=MS, stack=2))
    return chunks


@attack
def a_long_name_of_many_addresses(n: int) -> Chunks:
    """One text that is the name of all functions."""
    made = base(1)
    file = made.file("/a/b.so")
    chunks = made.chunks()
    natives = rows(model.NATIVE_DTYPE, n, address=np.arange(n) * 16, file=file)
    names = rows(model.NAME_DTYPE, n, native=np.arange(n) + 1, function=1, line=np.arange(n) + 1, file=1)
    with_rows(chunks, "natives", natives)
    with_rows(chunks, "names", names, ["", "long" * 100 * n])
    stacks = rows(model.STACK_DTYPE, n, native_count=1)
    with_rows(chunks, "stacks", stacks, name="stacks")
    with_rows(chunks, "stacks", rows(model.PYTHON_FRAME_DTYPE, 0), name="python")
    with_rows(chunks, "stacks", rows(model.NATIVE_INDEX_DTYPE, n, native=np.arange(n) + 1), name="native")
    number = np.arange(n)
    taken = rows(model.SAMPLE_DTYPE, n, time_ns=START_NS + (number + 1) * MS, on_cpu_ns=number * MS, stack=number + 1)
    with_rows(chunks, "samples", taken)
    return chunks


@attack
def a_long_name_of_many_frames(n: int) -> Chunks:
    """A stack in which a function of a long name is on top of itself many times."""
    made = base(1)
    made.native(made.file("/a/b.so"), ("f", "", 0, 0))
    made.stack((1, 0, 0), native=[1])
    chunks = made.chunks()
    with_rows(chunks, "names", rows(model.NAME_DTYPE, 1, native=1, function=1), ["", "long" * 100 * n])
    with_rows(chunks, "stacks", rows(model.NATIVE_INDEX_DTYPE, 60_000, native=1), name="native")
    chunk_of(chunks, "stacks").arrays["stacks"]["native_count"][1] = 60_000
    with_rows(chunks, "samples", rows(model.SAMPLE_DTYPE, 1, time_ns=START_NS + MS, on_cpu_ns=MS, stack=2))
    return chunks


@attack
def a_long_file_name_of_many_lines(n: int) -> Chunks:
    made = HandMade()
    made.process()
    made.thread()
    code = made.code("f", filename="/a/" + "b" * 100 * n, linetable=b"\x80\x00\xd8\x04" * 10)
    for number in range(n):
        made.stack((code, number * 2, 0), (code, number * 4, 0))
    # 3.11: an entry of the line table is a code unit of the next line.
    made.linetables[0] = bytes([0x80 | 11 << 3, 0, 0]) * n
    made.end = {"end_ns": START_NS + n * MS}
    chunks = made.chunks()
    number = np.arange(n)
    taken = rows(model.SAMPLE_DTYPE, n, time_ns=START_NS + (number + 1) * MS, on_cpu_ns=number * MS, stack=number + 1)
    with_rows(chunks, "samples", taken)
    return chunks


@attack
def long_names_of_threads_and_processes(n: int) -> Chunks:
    """A process of a long name with many threads, which wake each other."""
    made = base(n)
    made.processes[0].update(
        name="name" * 25 * n, cgroup="/c" * 50 * n, command_line=["c" * 100 * n], note="n" * 100 * n
    )
    for number in range(n):
        made.waker(number)
    chunks = made.chunks()
    with_rows(chunks, "waits", waits(2 * n, n, waker=np.arange(2 * n) % n + 1, waker_kind=1, waker_stack=1))
    return chunks


@attack
def deep_stacks(n: int) -> Chunks:
    made = base(1)
    chunks = made.chunks()
    count, depth = max(1, n // 500), 65_535
    stacks = rows(model.STACK_DTYPE, count, python_count=depth)
    with_rows(chunks, "stacks", stacks, name="stacks")
    offsets = np.arange(count * depth) * 2 % (1 << 20)
    with_rows(chunks, "stacks", rows(model.PYTHON_FRAME_DTYPE, count * depth, code=1, offset=offsets), name="python")
    number = np.arange(count)
    taken = rows(
        model.SAMPLE_DTYPE, count, time_ns=START_NS + (number + 1) * MS, on_cpu_ns=number * MS, stack=number + 1
    )
    with_rows(chunks, "samples", taken)
    return chunks


@attack
def threads_without_rows(n: int) -> Chunks:
    return base(10 * n, max(1, n // 10)).chunks()


@attack
def threads_of_an_index_each(n: int) -> Chunks:
    """Nothing is said of them, but of one."""
    chunks = base(1).chunks()
    with_rows(chunks, "totals", rows(model.TOTAL_DTYPE, 1, time_ns=START_NS))
    chunk_of(chunks, "threads").fields["rows"] = [{"index": number} for number in range(300 * n)]
    return chunks


@attack
def threads_of_a_process_of_a_long_name(n: int) -> Chunks:
    """Each is shown with it, in letters that take six each in JSON."""
    chunks = threads_of_an_index_each(n // 2)
    chunk_of(chunks, "processes").fields["rows"][0]["name"] = "\u4e00" * 1024
    return chunks


@attack
def samples_of_a_time_each(n: int) -> Chunks:
    """They lack all other columns."""
    chunks = small().chunks()
    chunks[-1:-1] = [Chunk("samples", {}, {"rows": np.zeros(1000 * n, [("time_ns", "<u8")])}) for _ in range(10)]
    return chunks


@attack
def processes_without_threads(n: int) -> Chunks:
    return base(1, 5 * n).chunks()


@attack
def threads_with_a_wait_each(n: int) -> Chunks:
    made = base(5 * n)
    chunks = made.chunks()
    with_rows(chunks, "waits", waits(5 * n, 5 * n))
    return chunks


@attack
def threads_that_wake_each_other(n: int) -> Chunks:
    """All of them at all times, in circles."""
    threads = 100
    made = base(threads)
    for number in range(threads):
        made.waker(number)
    chunks = made.chunks()
    number = np.arange(20 * n)
    with_rows(
        chunks, "waits", waits(20 * n, threads, waker=(number * 7 + 1) % threads + 1, waker_kind=1, waker_stack=1)
    )
    return chunks


@attack
def wakers_of_one_wait_each(n: int) -> Chunks:
    made = base(n)
    for number in range(n):
        made.waker(-1, number + 7, number + 8, f"waker{number}")
    chunks = made.chunks()
    with_rows(chunks, "waits", waits(4 * n, n, waker=np.arange(4 * n) % n + 1, waker_kind=1, waker_stack=1))
    return chunks


@attack
def waits_in_different_calls(n: int) -> Chunks:
    made = base(2, end_ns=200 * n * MS)
    chunks = made.chunks()
    number = np.arange(20 * n)
    of_calls = waits(
        20 * n,
        2,
        syscall=number % 30_000,
        task_state=number // 7 % 60_000,
        one_in=2,
        fd_kind=number % 5,
    )
    with_rows(chunks, "waits", of_calls)
    sums = rows(
        model.SHORT_DTYPE,
        5 * n,
        thread=number[: 5 * n] % 2,
        syscall=number[: 5 * n] % 30_000,
        count=3,
        blocked_ns=9000,
        flags=model.UNSAMPLED,
        task_state=number[: 5 * n] % 60_000,
        arg=number[: 5 * n],
    )
    with_rows(chunks, "short_waits", sums)
    return chunks


@attack
def many_locks(n: int) -> Chunks:
    """A lock of its own for each wait, of stacks of their own, with holders of each."""
    made = base(50)
    code = made.code("acquire")
    for number in range(n):
        made.stack((code, number * 2, 0), (1, 0, 0))
    for number in range(50):
        made.waker(number)
    chunks = made.chunks()
    number = np.arange(10 * n)
    of_locks = waits(
        10 * n, 50, stack=number % n + 2, waker=number % 50 + 1, waker_kind=1, waker_stack=(number * 3) % n + 2
    )
    of_locks["args"][:, 0] = 0x10000 + number * 64
    of_locks["args"][:, 1] = 393
    with_rows(chunks, "waits", of_locks)
    held = rows(
        model.LOCK_HOLDER_DTYPE,
        10 * n,
        thread=number % 50,
        holder=(number * 11) % 50 + 1,
        time_ns=START_NS + number * MS // 25,
        end_ns=START_NS + number * MS // 25 + 50 * n * MS,
    )
    with_rows(chunks, "lock_holders", held)
    return chunks


@attack
def one_lock_of_all(n: int) -> Chunks:
    """Waits of all threads for one lock that overlap, each seen with other holders all the time."""
    threads = max(2, n)
    made = base(threads, end_ns=10 * n * MS)
    for number in range(threads):
        made.waker(number)
    chunks = made.chunks()
    number = np.arange(threads)
    of_lock = waits(
        threads,
        threads,
        time_ns=START_NS + (5 * n + number) * MS,
        blocked_ns=5 * n * MS,
        waker=(number + 1) % threads + 1,
        waker_kind=1,
        waker_stack=1,
    )
    of_lock["args"][:, 0], of_lock["args"][:, 1] = 0x10000, 393
    with_rows(chunks, "waits", of_lock)
    number = np.arange(10 * n)
    held = rows(
        model.LOCK_HOLDER_DTYPE,
        10 * n,
        thread=number % threads,
        holder=(number * 11) % threads + 1,
        time_ns=START_NS + number * MS // 2,
        end_ns=START_NS + number * MS // 2 + MS,
    )
    with_rows(chunks, "lock_holders", held)
    return chunks


@attack
def tasks_that_await_each_other(n: int) -> Chunks:
    """Each waits for the next, the last for the first, all the time; many looks at each."""
    made = base(1)
    for number in range(n):
        made.task(f"task {number}")
    chunks = made.chunks()
    number = np.arange(5 * n)
    awaits = rows(
        model.TASK_WAIT_DTYPE,
        5 * n,
        task=number % n,
        awaited_by=(number + 1) % n + 1,
        awaited_by_count=1,
        stack=1,
        begin_ns=START_NS + number // n * MS,
        end_ns=START_NS + (number // n + 3) * MS,
        seen_ns=MS,
        count=1,
    )
    with_rows(chunks, "task_waits", awaits, ["", "Task"])
    return chunks


@attack
def tasks_awaited_in_a_long_chain(n: int) -> Chunks:
    chunks = tasks_that_await_each_other(n)
    awaits = chunk_of(chunks, "task_waits").arrays["rows"]
    awaits["awaited_by"][awaits["task"] == n - 1] = 0
    return chunks


@attack
def tasks_awaited_by_one(n: int) -> Chunks:
    chunks = tasks_that_await_each_other(n)
    awaits = chunk_of(chunks, "task_waits").arrays["rows"]
    awaits["awaited_by"], awaits["end_ns"] = 1, START_NS + 1000 * MS
    return chunks


@attack
def marks_and_events(n: int) -> Chunks:
    made = base(2, end_ns=40 * n * MS)
    made.start["events"] = [f"event {number}" for number in range(200)]
    chunks = made.chunks()
    number = np.arange(20 * n)
    events = rows(model.EVENT_DTYPE, 20 * n, time_ns=START_NS + number * MS, count=1 << 40, event=number % 200, stack=1)
    with_rows(chunks, "events", events)
    marks = rows(model.MARK_DTYPE, 20 * n, time_ns=START_NS + number * MS, name=number % (n + 1), value=np.inf)
    with_rows(chunks, "marks", marks, [f"mark {number}" for number in range(n + 1)])
    return chunks


@attack
def files_and_code_of_many_processes(n: int) -> Chunks:
    made = base(n, n)
    for number in range(n):
        made.code(f"f{number}", number, filename=f"/{number}/a.py")
        made.file(f"/lib/{number}.so")
        made.stack((number + 2, 0, 0), process=number)
    chunks = made.chunks()
    number = np.arange(n)
    taken = rows(model.SAMPLE_DTYPE, n, time_ns=START_NS + MS, on_cpu_ns=MS, thread=number, stack=number + 2)
    with_rows(chunks, "samples", taken)
    return chunks


@attack
def samples_of_one_burst(n: int) -> Chunks:
    """Many samples, waits without length between them, and functions that never come twice."""
    made = base(1, end_ns=20 * n * MS)
    chunks = made.chunks()
    number = np.arange(20 * n)
    taken = rows(model.SAMPLE_DTYPE, 20 * n, time_ns=START_NS + number, on_cpu_ns=20 * n - number, stack=1)
    with_rows(chunks, "samples", taken)
    with_rows(chunks, "waits", waits(20 * n, 1, blocked_ns=0, time_ns=START_NS + number[::-1]))
    return chunks


@attack
def threads_with_a_sample_and_many_waits(n: int) -> Chunks:
    made = base(n, end_ns=100 * n * MS)
    code = made.code("g")
    for number in range(n):
        made.stack((code, number * 2, 0))
    chunks = made.chunks()
    number = np.arange(10 * n)
    taken = rows(model.SAMPLE_DTYPE, n, time_ns=START_NS + MS, on_cpu_ns=MS, stack=1, thread=number[:n])
    with_rows(chunks, "samples", taken)
    with_rows(chunks, "waits", waits(10 * n, n, stack=number % n + 2, object=0))
    return chunks


@attack
def rows_near_the_end_of_time(n: int) -> Chunks:
    made = base(2, end_ns=(1 << 62) - START_NS - 9)
    chunks = made.chunks()
    late = (1 << 62) - 1 - np.arange(n)
    of_end = waits(n, 2, time_ns=late, blocked_ns=(1 << 62) // (n + 1), on_cpu_ns=late)
    with_rows(chunks, "waits", of_end)
    totals = rows(model.TOTAL_DTYPE, 2, thread=[0, 1], time_ns=late[:2], since_ns=late[:2], on_cpu_ns=late[:2], state=3)
    with_rows(chunks, "totals", totals)
    with_rows(chunks, "samples", rows(model.SAMPLE_DTYPE, n, time_ns=late, on_cpu_ns=late, stack=1))
    return chunks


@attack
def status_texts_and_counters(n: int) -> Chunks:
    chunks = small().chunks()
    many = {f"reason \x1b[31m {number}": 1 << 61 for number in range(n)}
    chunks[-1].fields.update(lost=many, problems=many, tasks_missed=many, limit_hits=many, own_cpu_ns=1 << 61)
    chunks[0].fields.update(status_texts={str(number): "x\x1b]0;" for number in range(n)})
    return chunks


@attack
def rows_of_a_table_again_and_again(n: int) -> Chunks:
    """Each process described anew many times."""
    made = base(1, 10)
    again = [dict(made.processes[number % 10], name=f"name {number}") for number in range(5 * n)]
    made.processes += again
    return made.chunks()


@attack
def names_that_end_alike(n: int) -> Chunks:
    made = base(1)
    for number in range(max(2, n // 10)):
        made.code("f", filename=f"{chr(0x4E00 + number)}" + "/x" * n)
        made.stack((number + 2, 0, 0))
    chunks = made.chunks()
    number = np.arange(max(2, n // 10))
    with_rows(
        chunks,
        "samples",
        rows(
            model.SAMPLE_DTYPE,
            len(number),
            time_ns=START_NS + (number + 1) * MS,
            on_cpu_ns=number * MS,
            stack=number + 2,
        ),
    )
    return chunks


@attack
def calls_of_many_functions(n: int) -> Chunks:
    """With long names, in directions and flags that there are not."""
    made = base(n, end_ns=20 * n * MS)
    made.start["counts_calls"] = True
    assert made.end is not None
    made.end["call_libraries"] = {f"/{number}/" + "x" * 1000: 1 for number in range(n)}
    chunks = made.chunks()
    number = np.arange(20 * n)
    values = {"thread": number % n, "function": number % (n + 1), "direction": number % 256, "flags": number // 3 % 256}
    called = rows(model.CALL_DTYPE, 20 * n, **values, count=1 << 40, total_ns=1 << 40, bytes=1 << 40, lengths=1 << 31)
    with_rows(chunks, "calls", called, ["c" * 5000 + f"{number}" for number in range(n + 1)])
    return chunks
