"""Processes as they are now -> text for a terminal: deadlocks, a block for each thread, who waits for whom."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from bpfprof.model.frames import Frame
from bpfprof.model.ids import Tid
from bpfprof.model.now import ON_CPU, WAITING, ProcessNow, TaskNow, ThreadNow
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.waits.wait_graph import chains
from bpfprof.render.columns import middle_cut, padded, shortened, width
from bpfprof.render.labels import printable, short_file_names, source_line

COLUMNS = 100  # where it is not for a terminal
_MIN_COLUMNS = 60
_BELOW = " " * 8  # of what has no room beside a thread
_NAME_COLUMNS, _FUNCTION_COLUMNS = 28, 32  # at most, but for the longest of more room
# Parts of paths of modules that only lead to a program's own code; a wait in them is told by the reason.
_PLUMBING = ("threading.py", "socketserver.py", "wsgiref/handlers.py", "wsgiref/simple_server.py")
_HAS = {"pipe": "read", "future": "run", "socket": "answered"}  # by the kind of what is waited for, else held
_SAID_BY_NAME = ("gil", "lock", "future", "condition", "semaphore", "signal")  # the reason says no more
_TASKS_SHOWN = 20
_FEW = 2  # so many frames are shown rather than counted
_SOURCE_COLUMNS, _BESIDE_SOURCE = 16, 20  # at least, of lines of source; of functions beside them, instead of 32
_RUNS = "> "  # the line that a thread is in, without what only leads to it

Sources = Mapping[str, tuple[str, str]]  # path -> (text, why there is none)


def no_sources(_paths: Sequence[str]) -> Sources:
    """Of none of the files."""
    return {}


def render_dump_text(
    process: ProcessNow,
    all_frames: bool,
    full_filenames: bool,
    columns: int = COLUMNS,
    sources: Callable[[Sequence[str]], Sources] = no_sources,
) -> str:
    """Running threads first, then those that are waited for, waiting ones by how long, and idle ones.

    columns: for each line but that of a deadlock, which is whole. Threads and tasks that do the same are one. sources:
    of files, whose lines stand beside frames where there is room.
    """
    columns = max(columns, _MIN_COLUMNS)
    names = {thread.tid: printable(thread.name) or str(thread.tid) for thread in process.threads}
    waiters = Counter(
        thread.waits_for.held_by_tid for thread in process.threads if thread.waits_for and thread.waits_for.held_by_tid
    )
    stacks = [thread.frames for thread in process.threads] + [task.frames for task in process.tasks]
    counts = Counter(frame.file for frames in stacks for frame in frames)
    paths, texts = counts.keys(), sources([path for path, _ in counts.most_common()])
    files = {path: path for path in paths} if full_filenames else short_file_names(paths)
    lines = deadlock_lines(process, files)
    lines += _wrapped(*_heading(process, names, columns), columns, " · ", " · ")
    groups = _alike(sorted(process.threads, key=lambda thread: _rank(thread, waiters)), waiters, all_frames)
    who = [_who(threads, names) for threads in groups]
    name = min(max(map(width, who), default=0), _NAME_COLUMNS)
    for threads, of_it in zip(groups, who):
        thread = threads[0]
        head, words = _first_line(threads, names, waiters)
        mark = ">" if thread.state == ON_CPU else " "
        begin = f"{mark} {padded(shortened(of_it, name), name)}  {head:<7}"
        if width(f"{begin}  {', '.join(words)}") > columns:
            words = [_in_short(word) for word in words]
        lines += ["", *_wrapped(begin, words, columns)]
        note = thread.note or "no Python frame was seen" * bool(process.interpreter and not thread.frames)
        lines += [f"    ({note})"] * bool(note)
        lines += _frame_lines(thread.frames, files, texts, all_frames, columns, thread.variables)
    lines += _task_lines(process.tasks, files, texts, all_frames, columns)
    lines += ["", *textwrap.wrap(_graph_line(process, names), columns)]
    lines += textwrap.wrap(_changed_files(texts, files), columns)
    return "\n".join(lines) + "\n"


def _wrapped(head: str, words: Sequence[str], columns: int, before: str = "  ", between: str = ", ") -> list[str]:
    """The words after the head; those that have no room stand below, indented, in several lines where they must."""
    lines = [head]
    for word in words:
        if width(lines[-1] + before + word) + len(between.rstrip()) > columns:
            lines[-1] += before.rstrip()
            lines += textwrap.wrap(word, columns, initial_indent=_BELOW, subsequent_indent=_BELOW) or [_BELOW]
        else:
            lines[-1] += before + word
        before = between
    return [line.rstrip() for line in lines]


def deadlock_lines(process: ProcessNow, files: Mapping[str, str]) -> list[str]:
    """One for each cycle: `DEADLOCK: A -> B -> A`; of a thread that waits for itself with both places of its stack."""
    threads = {thread.tid: thread for thread in process.threads}
    names = {tid: printable(thread.name) or str(tid) for tid, thread in threads.items()}
    found = []
    for cycle in process.deadlocks:
        line = "DEADLOCK: " + " -> ".join(
            names.get(tid) or printable(process.elsewhere.get(tid, str(tid))) for tid in (*cycle, cycle[0])
        )
        thread = threads.get(cycle[0]) if len(cycle) == 1 else None
        found.append(line + (_wanted_again(thread, files) if thread else ""))
    return found


def _wanted_again(thread: ThreadNow, files: Mapping[str, str]) -> str:
    has = thread.waits_for.held_in if thread.waits_for else None
    wants = next((frame for frame in thread.frames if not frame.file.endswith(_PLUMBING)), None)
    if has is None or wants is None:
        return ""
    taken, again = (
        f"{printable(each.name)} ({printable(files.get(each.file, each.file))}:{each.line})" for each in (has, wants)
    )
    return f", which has the lock in {taken} and wants it again in {again}"


def _heading(process: ProcessNow, names: Mapping[Tid, str], columns: int) -> tuple[str, list[str]]:
    """(command without folders and number, what is known of it)"""
    version = f"CPython {process.interpreter[1]}" if process.interpreter else f"no Python frames: {process.note}"
    count = len(process.threads)
    words = [printable(version), f"{count} thread{'s' * (count != 1)}"]
    words += [f"GIL: {names[thread.tid]}" for thread in process.threads if thread.holds_gil][:1]
    number = f" ({process.pid})"
    title = " ".join(word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in process.title.split(" "))
    return shortened(printable(title), columns - width(number)) + number, words


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


def _who(threads: Sequence[ThreadNow], names: Mapping[Tid, str]) -> str:
    """`worker-1  5988`, `worker-1..12 (12 threads)`."""
    if len(threads) == 1:
        return f"{names[threads[0].tid]}  {threads[0].tid}"
    return f"{folded_name([names[thread.tid] for thread in threads])} ({len(threads)} threads)"


def _first_line(
    threads: Sequence[ThreadNow], names: Mapping[Tid, str], waiters: Mapping[Tid, int]
) -> tuple[str, list[str]]:
    """(state, what is known of the wait) of threads that are alike."""
    thread = threads[0]
    what, holder = _wanted(thread, names)
    words = [what] if thread.state == WAITING else []
    waited = sorted(
        {duration_text(each.for_s): each.for_s for each in threads if each.for_s is not None}.items(), key=_second
    )
    if waited:
        words.append(f"for {' to '.join([waited[0][0], waited[-1][0]][: len(waited)])}")
    kind = thread.waits_for.kind if thread.waits_for else ""
    nobody = printable(thread.waits_for.nobody) if thread.waits_for else ""
    has = "written" if thread.waits_for and thread.waits_for.reads else _HAS.get(kind, "held")
    words += [nobody] if nobody else [f"{has} by {holder}"] * bool(holder)
    words += ["holds the GIL"] * thread.holds_gil
    if waiters.get(thread.tid):
        words.append(f"{waiters[thread.tid]} wait{'s' * (waiters[thread.tid] == 1)} for it")
    words += ["same stack  (-a shows each)"] * (len(threads) > 1)
    return "IDLE" if thread.is_idle else {ON_CPU: "RUNNING", WAITING: "WAITING"}.get(thread.state, "READY"), words


def _in_short(word: str) -> str:
    """The same where not all of it has room: `1.5 s`, `2 wait`."""
    return word.removeprefix("for ").removesuffix(" for it").removesuffix("  (-a shows each)")


def _wanted(thread: ThreadNow, names: Mapping[Tid, str]) -> tuple[str, str]:
    """(what it waits for, who holds that, "": not known)"""
    wanted = thread.waits_for
    if wanted is None:
        return thread.reason, ""
    holder = f"process {wanted.held_by_pid}" if wanted.held_by_pid is not None else ""
    if wanted.held_by_tid is not None:
        alone = holder if int(wanted.held_by_tid) == wanted.held_by_pid else f"thread {wanted.held_by_tid} of {holder}"
        holder = names.get(wanted.held_by_tid) or alone
    if wanted.kind == "thread":
        return f"end of {holder or 'a thread'}", ""
    name = printable(wanted.name)
    is_name = wanted.kind in _SAID_BY_NAME and thread.reason != "stopped"
    return name if is_name else f"{thread.reason}, {name}", holder * (wanted.kind != "child")


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def _frame_lines(
    frames: Sequence[Frame],
    files: Mapping[str, str],
    sources: Sources,
    all_frames: bool,
    columns: int,
    variables: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    lines: list[str] = []
    shows_all = all_frames or all(frame.file.endswith(_PLUMBING) for frame in frames)  # else nothing would be left
    hidden = [not shows_all and frame.file.endswith(_PLUMBING) for frame in frames]
    texts = _with_sources(frames, files, sources, hidden.index(False) if frames else 0, columns)
    blocks: list[tuple[bool, tuple[str, ...]]] = []
    for number, (is_hidden, text) in enumerate(zip(hidden, texts)):
        values = variables[number].items() if variables else ()
        blocks.append((is_hidden, (text, *(f"        {printable(it)} = {printable(value)}" for it, value in values))))
    for is_hidden, part in groupby(blocks, lambda block: block[0]):
        some = [block for _, block in part]
        if is_hidden and len(some) > _FEW:
            lines.append(f"    ... {len(some)} frames  (-a shows all)")
        else:
            lines += _without_repeats(some, all_frames)
    return lines


def _with_sources(
    frames: Sequence[Frame], files: Mapping[str, str], sources: Sources, innermost: int, columns: int
) -> list[str]:
    """Function and place of each frame and, where there is room, its line; that of the innermost is marked."""
    places = [f"{printable(files[frame.file])}:{frame.line}" if frame.file else "" for frame in frames]
    longest, source = max(map(width, places), default=0), [source_line(frame, sources) for frame in frames]
    least = _BESIDE_SOURCE if any(source) else _FUNCTION_COLUMNS
    room = columns - 5 - min(longest, columns // 2)
    most = min(max(least, *(width(printable(frame.name)) for frame in frames), 0), room)
    begin = 4 + most + 1 + longest + 1
    left = columns - begin - len(_RUNS)
    lines = []
    for number, (frame, place) in enumerate(zip(frames, places)):
        line = f"    {padded(shortened(printable(frame.name), most), most)} {middle_cut(place, columns - most - 5)}"
        if source[number] and left >= _SOURCE_COLUMNS:
            mark = _RUNS if number == innermost else " " * len(_RUNS)
            line = padded(line, begin) + mark + shortened(source[number], left)
        lines.append(line.rstrip())
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


def _task_lines(
    tasks: Sequence[TaskNow], files: Mapping[str, str], sources: Sources, all_frames: bool, columns: int
) -> list[str]:
    """Those that wait for the same in the same stack are one, as threads are."""
    groups: dict[object, list[TaskNow]] = {}
    for number, task in enumerate(tasks):
        key = number if all_frames else (task.reason, task.waited_for_by, tuple(task.frames))
        groups.setdefault(key, []).append(task)
    shown = [*groups.values()] if all_frames else [*groups.values()][:_TASKS_SHOWN]
    lines: list[str] = []
    for alike in shown:
        task = alike[0]
        names = printable(folded_name([each.name for each in alike]))
        who = f"  task {names}" if len(alike) == 1 else f"  {len(alike)} tasks {names}"
        words = [task.reason] + ([f"waited for by {printable(task.waited_for_by)}"] if task.waited_for_by else [])
        words += ["same stack  (-a shows each)"] * (len(alike) > 1)
        lines += ["", *_wrapped(shortened(who, columns // 2), words, columns)]
        lines += _frame_lines(task.frames, files, sources, all_frames, columns)
    left = len(tasks) - sum(map(len, shown))
    return lines + ["", f"  ... {left} more tasks  (-a shows all)"] * (left > 0)


def _changed_files(sources: Sources, files: Mapping[str, str]) -> str:
    names = [printable(files.get(path, path)) for path, (_, why) in sources.items() if why.startswith("it was changed")]
    return f"Lines of {', '.join(names)} are not shown: changed after the process began." if names else ""


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
