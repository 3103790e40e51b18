"""Processes as they are now -> text for a terminal: deadlocks, a block for each thread, who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from bpfprof.model.frames import Frame
from bpfprof.model.ids import Tid
from bpfprof.model.now import ON_CPU, WAITING, ProcessNow, TaskNow, ThreadNow
from bpfprof.query.wait_graph import chains
from bpfprof.render.labels import printable, short_file_names

_NAME_COLUMNS, _FUNCTION_COLUMNS = 20, 32
# Parts of paths of modules that only lead to a program's own code; a wait in them is told by the reason.
_PLUMBING = ("threading.py", "socketserver.py", "wsgiref/handlers.py", "wsgiref/simple_server.py")
_TASKS_SHOWN = 20
_FEW = 2  # so many frames are shown rather than counted
_NAMES_SHOWN = 4  # of threads that are shown as one


def render_dump_text(process: ProcessNow, all_frames: bool, full_filenames: bool) -> str:
    """Running threads first, then those that are waited for, waiting ones by how long, and idle ones."""
    names = {thread.tid: printable(thread.name) or str(thread.tid) for thread in process.threads}
    waiters = Counter(
        thread.waits_for.held_by_tid for thread in process.threads if thread.waits_for and thread.waits_for.held_by_tid
    )
    stacks = [thread.frames for thread in process.threads] + [task.frames for task in process.tasks]
    paths = {frame.file for frames in stacks for frame in frames}
    files = {path: path for path in paths} if full_filenames else short_file_names(paths)
    lines = deadlock_lines(process, files)
    lines += [_heading(process, names)]
    for threads in _alike(sorted(process.threads, key=lambda thread: _rank(thread, waiters)), waiters, all_frames):
        thread = threads[0]
        lines += ["", _first_line(threads, names, waiters)]
        lines += [f"    ({thread.note})"] * bool(thread.note)
        lines += _frame_lines(thread.frames, files, all_frames, thread.variables)
    lines += _task_lines(process.tasks, files, all_frames)
    lines += ["", _graph_line(process, names)]
    return "\n".join(lines) + "\n"


def deadlock_lines(process: ProcessNow, files: Mapping[str, str]) -> list[str]:
    """One for each cycle: `DEADLOCK: A -> B -> A`; of a thread that waits for itself with both places of its stack."""
    threads = {thread.tid: thread for thread in process.threads}
    names = {tid: printable(thread.name) or str(tid) for tid, thread in threads.items()}
    found = []
    for cycle in process.deadlocks:
        line = "DEADLOCK: " + " -> ".join(names.get(tid, str(tid)) for tid in (*cycle, cycle[0]))
        thread = threads.get(cycle[0]) if len(cycle) == 1 else None
        found.append(line + (_wanted_again(thread, files) if thread else ""))
    return found


def _wanted_again(thread: ThreadNow, files: Mapping[str, str]) -> str:
    has = thread.waits_for.held_in if thread.waits_for else None
    wants = next((frame for frame in thread.frames if not frame.file.endswith(_PLUMBING)), None)
    if has is None or wants is None:
        return ""
    taken, again = (f"{printable(it.name)} ({printable(files.get(it.file, it.file))}:{it.line})" for it in (has, wants))
    return f", which has the lock in {taken} and wants it again in {again}"


def _heading(process: ProcessNow, names: Mapping[Tid, str]) -> str:
    version = f"CPython {process.interpreter[1]}" if process.interpreter else f"no Python frames: {process.note}"
    count = len(process.threads)
    holder = next((f"   GIL: {names[thread.tid]}" for thread in process.threads if thread.holds_gil), "")
    title = f"{printable(process.title)} ({process.pid})"
    return f"{title} · {printable(version)} · {count} thread{'s' * (count != 1)}{holder}"


def _rank(thread: ThreadNow, waiters: Mapping[Tid, int]) -> tuple[int, float, int]:
    if thread.is_idle:
        return 3, 0.0, thread.tid
    if thread.state != WAITING:
        return 0, 0.0 if thread.state == ON_CPU else 1.0, thread.tid
    return 2 - (waiters.get(thread.tid, 0) > 0), -(thread.for_s or 0.0), thread.tid


def _alike(threads: Sequence[ThreadNow], waiters: Mapping[Tid, int], all_frames: bool) -> list[list[ThreadNow]]:
    """Those that do the same are together, where the first of them is: they wait for the same in the same stack."""
    groups: dict[object, list[ThreadNow]] = {}
    for thread in threads:
        is_own = all_frames or thread.state != WAITING or thread.tid in waiters or thread.holds_gil or thread.variables
        wanted = None if thread.is_idle else thread.waits_for  # an idle thread waits for no one's lock
        same = thread.is_idle, thread.reason, wanted, tuple(thread.frames), thread.note
        groups.setdefault(thread.tid if is_own else same, []).append(thread)
    return list(groups.values())


def _first_line(threads: Sequence[ThreadNow], names: Mapping[Tid, str], waiters: Mapping[Tid, int]) -> str:
    """Of threads that are alike."""
    thread = threads[0]
    what, holder = _wanted(thread, names)
    words = [what] if thread.state == WAITING else []
    waited = sorted({duration_text(it.for_s): it.for_s for it in threads if it.for_s is not None}.items(), key=_second)
    if waited:
        words.append(f"for {' to '.join([waited[0][0], waited[-1][0]][: len(waited)])}")
    words += [f"{'read' if thread.reason == 'pipe' else 'held'} by {holder}"] * bool(holder)
    words += [printable(thread.waits_for.nobody)] if thread.waits_for and thread.waits_for.nobody else []
    words += ["holds the GIL"] * thread.holds_gil
    if waiters.get(thread.tid):
        words.append(f"{waiters[thread.tid]} wait{'s' * (waiters[thread.tid] == 1)} for it")
    state = "IDLE" if thread.is_idle else {ON_CPU: "RUNNING", WAITING: "WAITING"}.get(thread.state, "READY")
    mark = ">" if thread.state == ON_CPU else " "
    who = f"{names[thread.tid]:<{_NAME_COLUMNS}} {thread.tid:>7}"
    if len(threads) > 1:
        words.append("same stack  (-a shows each)")
        who = ", ".join([names[it.tid] for it in threads[:_NAMES_SHOWN]] + ["..."] * (len(threads) > _NAMES_SHOWN))
        who = f"{who} ({len(threads)} threads)"
    return f"{mark} {who:<{_NAME_COLUMNS + 8}}  {state:<7}  {', '.join(words)}".rstrip()


def _wanted(thread: ThreadNow, names: Mapping[Tid, str]) -> tuple[str, str]:
    """(what it waits for, who holds that, "": not known)"""
    wanted = thread.waits_for
    if wanted is None:
        return thread.reason, ""
    holder = f"process {wanted.held_by_pid}" if wanted.held_by_pid is not None else ""
    if wanted.held_by_tid is not None:
        holder = names.get(wanted.held_by_tid) or f"thread {wanted.held_by_tid} of {holder}"
    if wanted.kind == "thread":
        return f"end of {holder or 'a thread'}", ""
    name = printable(wanted.name)
    return name if wanted.kind in ("gil", "lock") else f"{thread.reason}, {name}", holder * (wanted.kind != "child")


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def _frame_lines(
    frames: Sequence[Frame], files: Mapping[str, str], all_frames: bool, variables: Sequence[Mapping[str, str]] = ()
) -> list[str]:
    lines: list[str] = []
    shows_all = all_frames or all(frame.file.endswith(_PLUMBING) for frame in frames)  # else nothing would be left
    blocks: list[tuple[bool, tuple[str, ...]]] = []
    for number, frame in enumerate(frames):
        place = f"{printable(files[frame.file])}:{frame.line}" if frame.file else ""
        text = f"    {printable(frame.name):<{_FUNCTION_COLUMNS}} {place}".rstrip()
        values = variables[number].items() if variables else ()
        block = (text, *(f"        {printable(name)} = {printable(value)}" for name, value in values))
        blocks.append((not shows_all and frame.file.endswith(_PLUMBING), block))
    for is_hidden, part in groupby(blocks, lambda block: block[0]):
        some = [block for _, block in part]
        if is_hidden and len(some) > _FEW:
            lines.append(f"    ... {len(some)} frames  (-a shows all)")
        else:
            lines += _without_repeats(some, all_frames)
    return lines


def _without_repeats(blocks: Sequence[tuple[str, ...]], all_frames: bool) -> list[str]:
    """The lines of frames; one that is there many times, as a recursion has it, is counted."""
    lines: list[str] = []
    for block, same in groupby(blocks):
        count = len(list(same))
        shown = count if all_frames or count <= _FEW + 1 else 1
        lines += block * shown
        lines += [f"    ... the same {count - shown:,} times more  (-a shows all)"] * (count > shown)
    return lines


def _task_lines(tasks: Sequence[TaskNow], files: Mapping[str, str], all_frames: bool) -> list[str]:
    lines: list[str] = []
    shown = tasks if all_frames else tasks[:_TASKS_SHOWN]
    for task in shown:
        waited = f", waited for by {printable(task.waited_for_by)}" if task.waited_for_by else ""
        lines += ["", f"  task {printable(task.name)}  {task.reason}{waited}"]
        lines += _frame_lines(task.frames, files, all_frames)
    left = len(tasks) - len(shown)
    return lines + ["", f"  ... {left} more tasks  (-a shows all)"] * (left > 0)


def _graph_line(process: ProcessNow, names: Mapping[Tid, str]) -> str:
    held = {
        thread.tid: thread.waits_for.held_by_tid
        for thread in process.threads
        if thread.waits_for and thread.waits_for.held_by_tid is not None
    }
    texts = [" -> ".join(names.get(tid, str(tid)) for tid in chain) for chain in chains(held)]
    unknown = sum(
        thread.waits_for.kind == "lock" and thread.waits_for.held_by_tid is None and not thread.waits_for.nobody
        for thread in process.threads
        if thread.waits_for is not None and not thread.is_idle
    )
    told = [f"Waits on: {'; '.join(texts)}."] * bool(texts)
    told += ["No deadlock is seen."] * (not process.deadlocks)
    if unknown:
        told.append(f"Of {unknown} wait{'s' * (unknown != 1)} for a lock it is not known who holds it.")
    return " ".join(told)


def duration_text(seconds: float) -> str:
    """Two or three digits and a unit."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
