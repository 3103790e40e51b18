"""Work -> what its stuck threads wait for, in words: who has it, and what that one does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.known.services import object_text
from bpfprof.model.now import ANSWER, GIL, OF_PROCESSES
from bpfprof.model.profile import LastWait, Profile
from bpfprof.model.reasons import REASONS
from bpfprof.model.rows import picked
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.waits.lock_orders import deadlock_frame, deadlocks
from bpfprof.query.work.hand_overs import hand_overs
from bpfprof.query.work.places import place_text
from bpfprof.query.work.table import Work
from bpfprof.query.work.unended import WRITES, named

# Of pools of processes: who waits for one, who works for it, and who waits for something to do; by (end of the path,
# functions). A future may be of a pool of threads.
_POOLS = (("multiprocessing/pool.py", frozenset(("get", "wait", "next"))),)
_FUTURES = (("concurrent/futures/_base.py", frozenset(("result", "exception", "wait", "as_completed"))),)
_WORKERS = (
    ("multiprocessing/pool.py", frozenset(("worker",))),
    ("concurrent/futures/process.py", frozenset(("_process_worker",))),
)
_GETS = (("multiprocessing/queues.py", frozenset(("get",))),)
# Of asyncio: what waits for who has a lock, or a place of a semaphore; an Event may be what ends the program.
_TASK_LOCKS = (("asyncio/locks.py", frozenset(("acquire",))),)
_RUNS = (("concurrent/futures/thread.py", frozenset(("run",))),)
_EXITS = (("threading.py", frozenset(("_shutdown",))),)
_LOOPS = (("asyncio/base_events.py", frozenset(("_run_once", "run_forever"))),)
# Of the recording a task's wait, at least, and how near to its end it was seen: tasks are looked at now and then.
_TASK_PART, _TASK_LEAST_NS, _TASK_END_NS = 0.5, 500_000_000, 300_000_000
_READS = frozenset(("read", "readv", "__read", "__libc_read", "__GI___libc_read", "pipe_read", "anon_pipe_read"))
_WORKS = 0.05  # of the recording: so much work says what a program is about
_NAMES = 6  # of threads of a deadlock
_BEGUN_NS = 20_000_000  # what began so near to a thread's first moment began before it
_DOES = {reason.word: reason.does for reason in REASONS}
_ADVICE = {reason.word: reason.advice for reason in REASONS if reason.advice}
_OF_TASKS = "report --by task shows what each task waits for, and dump PID its stack"
_OF_READER = "see why nothing is written, and close each end that is not used: the last one closed is the end of a pipe"
_NO_ANSWER = "it has asked, and nothing has come yet"
_OF_SERVER = "serve in several threads or processes, or don't ask oneself"
_OF_LOOP = "await it: what it waits for runs in its own event loop, or is set by it, and that stands still meanwhile"
_OF_NOBODY = ("condition", "semaphore")  # kinds of what nobody has
# What is waited for by a condition, by who waits.
_BY_CONDITION = (
    ("a barrier that not all have come to", (("threading.py", frozenset(("_wait",))),)),
    ("an empty queue", (("/queue.py", frozenset(("get",))),)),
    ("a full queue", (("/queue.py", frozenset(("put",))),)),
    ("what was put into a queue to be done", (("/queue.py", frozenset(("join",))),)),
)
_OF_THREAD = "dump PID shows what the other threads do"


@dataclass(frozen=True)
class Stuck:
    """Threads, places in Profile.threads, that wait for the same in one function and did so when the recording ended.

    frame: where, a place in Profile.frames, -1: not known. ns: of all of them in the recording.
    """

    threads: tuple[int, ...]
    frame: int
    ns: int
    sentence: str
    advice: str
    is_behind: bool = False  # they wait for others, of which it is said what they wait for


def hung_facts(profile: Profile, work: Work) -> tuple[dict[str, Any], int]:
    """(those of Facts that say which threads wait for one another, or are stuck, where that is; -1: no such ones)"""
    if cycles := deadlocks(profile):
        first, frame = cycles[0], deadlock_frame(profile, work, cycles[0])
        kinds = {wait.thread: wait.kind for wait in profile.last_waits if wait.thread in first}
        of_others = [kind for kind in OF_PROCESSES if kind in kinds.values()]
        kind = of_others[0].replace("child", "pipe") if of_others else kinds.get(first[0], "lock")
        kind = GIL if GIL in kinds.values() else kind
        names = _names(profile, first)
        names = names if len(names) <= _NAMES else [*names[: _NAMES - 1], "..."]
        names += names[: len(names) > 1]
        where = place_text(profile.frames[frame]) if frame >= 0 else ""
        found = {"deadlock": " -> ".join(names), "deadlock_where": where, "deadlock_kind": kind}
        return {**found, "deadlocks": len(cycles)}, frame
    stuck = stuck_threads(profile, work)
    if not stuck and (tasks := stuck_tasks(profile, work)):
        return {"stuck_part": 1.0, "stuck": tasks.sentence, "stuck_advice": tasks.advice}, tasks.frame
    if not stuck:
        return {}, -1
    more = sum(len(each.threads) for each in stuck[1:])
    text = stuck[0].sentence + (f" {more} more {'is' if more == 1 else 'are'} stuck." if more else "")
    part = int(work.stuck["stands_for_ns"].sum()) / max(work.working_ns, 1)
    return {"stuck_part": part, "stuck": text, "stuck_advice": stuck[0].advice}, stuck[0].frame


def _names(profile: Profile, threads: Sequence[int]) -> list[str]:
    """Also of which process each is, where they are of several."""
    found = [profile.threads[thread] for thread in threads]
    are_of_one = len({each.pid for each in found}) == 1
    return [
        (each.thread_name or "?") + ("" if are_of_one else f" of {each.process_name} ({each.pid})") for each in found
    ]


def stuck_threads(profile: Profile, work: Work) -> list[Stuck]:
    """Those that wait for no other thread first, and of them those with most time."""
    looks = profile.lock_holders
    told = zip(looks["thread"].tolist(), looks["holder"].tolist())
    last = {thread: LastWait(thread, "lock", "a lock", holder - 1, "", "", 0) for thread, holder in told}
    last |= {each.thread: each for each in profile.last_waits}
    groups: dict[tuple[object, ...], list[np.void]] = {}
    for row in work.stuck:
        wait, own = last.get(int(row["thread"])), int(work.own[row["stack"]])
        what = (wait.name, wait.holder, wait.nobody) if wait else ()
        groups.setdefault((int(row["reason"]), own, profile.threads[row["thread"]].pid, *what), []).append(row)
    found = [_stuck(profile, work, rows, last) for rows in groups.values()]
    are_stuck = {thread for each in found for thread in each.threads}

    def follows(each: Stuck) -> bool:
        """Whether it waits for the end of a thread or a process that is stuck itself, which says more."""
        wait, pid = last.get(each.threads[0]), profile.threads[each.threads[0]].pid
        if wait is None or wait.kind not in ("thread", "child"):
            return False
        is_any = wait.kind == "child" and wait.holder < 0
        return wait.holder in are_stuck or (is_any and any(profile.threads[it].pid != pid for it in are_stuck))

    return sorted(found, key=lambda each: (follows(each), each.is_behind, -each.ns, each.threads))


def stuck_tasks(profile: Profile, work: Work) -> Stuck | None:
    """Tasks of asyncio that wait for a lock to the end, while no thread of theirs does anything: most of one place."""
    if work.working_ns >= _WORKS * profile.info.duration_ns:
        return None
    rows = _last_of_tasks(profile)
    rows = rows[work.stack_frames.pass_through(_TASK_LOCKS)[rows["stack"]]]
    places: dict[int, list[np.void]] = {}
    for row in rows:
        places.setdefault(int(work.own[row["stack"]]), []).append(row)
    if not places:
        return None
    frame, found = max(places.items(), key=lambda each: len(each[1]))
    text = f"Stuck: {_who_of_tasks(profile, found)} for a lock"
    text += f", in {place_text(profile.frames[frame])}" if frame >= 0 else ""
    text += f", for the last {_seconds(max(int(row['duration_ns']) for row in found))}; who has it is not known."
    ns = sum(int(row["stands_for_ns"]) for row in found)
    return Stuck((), frame, ns, text, _OF_TASKS)


def _last_of_tasks(profile: Profile) -> npt.NDArray[np.void]:
    """What tasks waited for to the end of the recording, for most of it."""
    rows, duration_ns = profile.task_spans, profile.info.duration_ns
    waits = ~rows["is_running"] & (rows["duration_ns"] >= max(_TASK_PART * duration_ns, _TASK_LEAST_NS))
    return picked(rows, waits & (rows["start_ns"] + rows["duration_ns"] >= duration_ns - _TASK_END_NS))


def _who_of_tasks(profile: Profile, rows: Iterable[np.void]) -> str:
    names = [profile.tasks[row["task"]].name for row in rows]
    who = f"task {names[0]}" if len(names) == 1 else f"{len(names)} tasks ({folded_name(names)})"
    return f"{who} of asyncio wait{'s' * (len(names) == 1)}"


def _stuck_loop(profile: Profile, work: Work, row: np.void, wait: LastWait) -> Stuck:
    """An event loop that nothing can wake, or that has asked: which of its tasks wait, and where most of them."""
    thread = profile.threads[row["thread"]]
    tasks = _last_of_tasks(profile)
    tasks = tasks[[profile.tasks[task].pid == thread.pid for task in tasks["task"].tolist()]]
    locked = tasks[(wait.kind != ANSWER) & work.stack_frames.pass_through(_TASK_LOCKS)[tasks["stack"]]]
    tasks = locked if len(locked) else tasks
    own = work.own[tasks["stack"]]
    frame = int(np.bincount(own[own >= 0]).argmax()) if (own >= 0).any() else int(work.own[row["stack"]])
    text = f"Stuck: {_who_of_tasks(profile, tasks) if len(tasks) else _who(profile, (int(row['thread']),)) + ' waits'}"
    what = "a lock" if len(locked) else object_text(wait.name.partition(": ")[2]) if wait.kind == ANSWER else ""
    text += f" for {what}," * bool(what) + (f" in {place_text(profile.frames[frame])}" if frame >= 0 else "")
    text += f", {_since(profile, [row], wait)}; {wait.nobody or _NO_ANSWER}."
    advice = _OF_TASKS if len(tasks) else _OF_THREAD
    return Stuck((int(row["thread"]),), frame, int(row["stands_for_ns"]), text, advice)


def _stuck(profile: Profile, work: Work, rows: list[np.void], last: dict[int, LastWait]) -> Stuck:
    threads = tuple(sorted(int(row["thread"]) for row in rows))
    row, wait = rows[0], last.get(int(rows[0]["thread"]))
    if wait and wait.kind in ("poll", ANSWER):
        return _stuck_loop(profile, work, row, wait)
    (frame, task), reason = _where(profile, work, row, threads), reason_text(int(row["reason"]))
    is_behind = (
        reason == "lock"
        and not (wait and (wait.holder >= 0 or wait.nobody))
        and bool(hand_overs(work.stack_frames.frames, work.stack_frames)[0][row["stack"]])
    )
    frames = work.stack_frames
    is_of_pool = is_behind and bool(
        frames.pass_through(_POOLS)[row["stack"]]
        or (frames.pass_through(_FUTURES)[row["stack"]] and frames.pass_through(_WORKERS[1:]).any())
    )
    reads, writes = (bool(frames.have(named(frames, names))[row["stack"]]) for names in (_READS, WRITES))
    is_named = wait is not None and wait.kind in ("thread", "future", *_OF_NOBODY)
    if is_of_pool:
        what = "what a pool of processes was given"
    elif is_behind and frames.pass_through(_EXITS)[row["stack"]]:
        what = "the end of threads that are no daemons"
    elif is_behind and not is_named:
        what = "a thread that does nothing"
    else:
        what = _what(profile, work, row, wait, writes)
    text = f"Stuck: {_who(profile, threads)} wait{'s' * (len(threads) == 1)} for {what}"
    text += f", for task {task}" * bool(task) + (f", in {place_text(profile.frames[frame])}" if frame >= 0 else "")
    holder = (
        _of_pool(profile, work)
        if is_of_pool
        else _holder(profile, work, reason, wait, is_behind, "read" * writes or "write to" * reads)
    )
    text += f", {_since(profile, rows, wait)}; {holder}"
    kind = "thread" if is_behind or is_named else reason
    in_loop = bool(frames.pass_through(_LOOPS)[row["stack"]])
    ns = int(sum(int(each["stands_for_ns"]) for each in rows))
    advice = _advice(kind, wait, reads, writes, in_loop)
    return Stuck(threads, frame, ns, text.rstrip("; ") + ".", advice, is_behind)


def _advice(kind: str, wait: LastWait | None, reads: bool, writes: bool, in_loop: bool) -> str:
    if kind == "poll" and wait and wait.kind == "pipe":
        return _OF_READER
    if kind == "pipe" and not writes:
        return _OF_READER if reads else _OF_THREAD
    if wait and wait.kind == "socket" and wait.nobody:
        return _OF_SERVER
    if wait and wait.kind == "future" and in_loop:
        return _OF_LOOP
    return _ADVICE.get(kind, _OF_THREAD)


def _where(profile: Profile, work: Work, row: np.void, threads: tuple[int, ...]) -> tuple[int, str]:
    """(a place in Profile.frames, -1: none; a task of asyncio, "": none): where it waits, or where the only task of its
    process does, for this thread of a pool that runs none of the user's own code."""
    frame, frames = int(work.own[row["stack"]]), work.stack_frames
    if len(threads) != 1 or not frames.pass_through(_RUNS)[row["stack"]] or frames.own_depths()[row["stack"]]:
        return frame, ""
    tasks = _last_of_tasks(profile)
    own = [
        (int(work.own[task["stack"]]), profile.tasks[task["task"]].name)
        for task in tasks
        if profile.tasks[task["task"]].pid == profile.threads[row["thread"]].pid
    ]
    return own[0] if len(own) == 1 and own[0][0] >= 0 else (frame, "")


def _who(profile: Profile, threads: tuple[int, ...]) -> str:
    """Also of which process they are, where that is another one than the first."""
    names = [profile.threads[thread].thread_name for thread in threads]
    thread = profile.threads[threads[0]]
    of = f" of {thread.process_name} ({thread.pid})" if thread.pid != profile.threads[0].pid else ""
    if len(threads) == 1:
        return (names[0] or f"thread {thread.tid}") + of
    return f"{len(threads)} threads ({folded_name(names)}){of}"


def _what(profile: Profile, work: Work, row: np.void, wait: LastWait | None, writes: bool) -> str:
    """writes: that is what it does, as far as its stack tells."""
    reason, place = reason_text(int(row["reason"])), int(row["object"])
    named = wait.name.partition(": ")[2] if wait and wait.name.startswith("fd ") else ""
    name = named or (profile.objects[place - 1] if place else "")
    if wait and wait.kind == "thread":
        return "the end of another thread"
    if wait and wait.kind in _OF_NOBODY:
        return _of_nobody(work, int(row["stack"]), wait.kind)
    if wait and wait.kind == "future":
        if wait.holder >= 0:
            return "what a thread of a pool runs"
        return "a future" if wait.nobody and "pool" not in wait.nobody else "what a pool was given"
    if reason == "lock":
        return "a lock"
    if reason == "file-lock":
        return f"the lock of {name or 'a file'}"
    if reason == "child":
        return f"its child {wait.held_by}" if wait and wait.held_by else "a child"
    if wait and wait.kind == "pipe" and not named:
        return f"the other end of {wait.name} to be opened"
    if reason == "pipe":
        is_full = wait and wait.kind == "pipe" and (wait.nobody or wait.held_by) and writes
        return (name or "a pipe") + ", which is full" * bool(is_full)
    if reason in ("net", "poll"):
        is_own = name.startswith(("udp socket", "unix socket"))
        return "its " * is_own + object_text(name) if name else "the network"
    return {"stopped": "being continued", "disk": f"the disk{', ' * bool(name)}{name}", "unknown": "the kernel"}.get(
        reason, f"{reason}{', ' * bool(name)}{name}"
    )


def _of_nobody(work: Work, stack: int, kind: str) -> str:
    frames = work.stack_frames
    return next((what for what, waits in _BY_CONDITION if frames.pass_through(waits)[stack]), f"a {kind}")


def _since(profile: Profile, rows: list[np.void], wait: LastWait | None) -> str:
    """`since before the recording, for 12 min`."""
    row = min(rows, key=lambda each: int(each["start_ns"]))
    began = int(row["start_ns"]) - profile.threads[row["thread"]].first_ns <= _BEGUN_NS
    waited_ns = max((each.waited_ns for each in profile.last_waits if each.thread == int(row["thread"])), default=0)
    text = "since before the recording" if began else f"for the last {_seconds(int(row['duration_ns']))}"
    return text + (f", for {_seconds(waited_ns)}" if began and waited_ns > int(row["duration_ns"]) else "")


def _seconds(ns: int) -> str:
    seconds = ns / 1e9
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _holder(profile: Profile, work: Work, reason: str, wait: LastWait | None, is_behind: bool, could: str) -> str:
    """could: what whoever has the other end of a pipe could do with it; "": not known."""
    if is_behind:
        return "no thread that could end that does anything"
    if wait is None:
        return "who has it is not known" if reason in ("lock", "file-lock") else ""
    if wait.nobody:
        return wait.nobody
    if wait.holder >= 0:
        thread = profile.threads[wait.holder]
        same = thread.pid == profile.threads[wait.thread].pid
        who = f"thread {thread.thread_name} ({thread.tid})" if same else wait.held_by or f"process {thread.pid}"
        does = _does(profile, work, wait.holder)
        if wait.kind in ("child", "thread", "future", "socket"):
            return f"{who} {does}" if does else f"that is {who}"
        has = "has it" if wait.kind != "pipe" else f"could {could} it" if could else "has its other end"
        return f"{who} {has}" + (f" and {does}" if does else "")
    if wait.held_by and wait.kind == "socket":
        return f"{wait.held_by} is at its other end"
    if wait.held_by and wait.kind == "pipe":
        return f"{wait.held_by} could {could} it" if could else f"{wait.held_by} has its other end"
    if wait.held_by and wait.kind != "child":
        return f"{wait.held_by} has it"
    return "who has it is not known" if wait.kind in ("lock", "file-lock") else ""


def _of_pool(profile: Profile, work: Work) -> str:
    """What a process of a pool does that has something to do."""
    assert profile.spans is not None
    walls = np.array([each.wall_ns for each in profile.threads] or [0], np.int64)
    works = work.stack_frames.pass_through(_WORKERS) & ~work.stack_frames.pass_through(_GETS)
    spans = profile.spans[works[profile.spans["stack"]]]
    for row in spans[spans["duration_ns"] * 2 >= walls[spans["thread"]]]:
        thread, does = profile.threads[row["thread"]], _does(profile, work, int(row["thread"]))
        if does:
            return f"{thread.process_name} ({thread.pid}) {does}"
    return "no process of it does anything"


def _does(profile: Profile, work: Work, thread: int) -> str:
    """`sleeps in hold (x.py:12)`: what it did last, where it did nothing else for most of its time."""
    assert profile.spans is not None
    spans = profile.spans[profile.spans["thread"] == thread]
    if not len(spans):
        return ""
    longest = spans[int(np.argmax(spans["duration_ns"]))]
    if 2 * int(longest["duration_ns"]) < profile.threads[thread].wall_ns:
        return ""
    if longest["state"] == ThreadState.ON_CPU:
        word = "runs"
    elif longest["state"] != ThreadState.OFF_CPU:
        return ""
    else:
        word = _DOES.get(reason_text(int(longest["reason"])), "")
        wait = next((each for each in profile.last_waits if each.thread == thread and each.kind in _OF_NOBODY), None)
        word = f"waits for {_of_nobody(work, int(longest['stack']), wait.kind)}" if wait and word else word
    frame = int(work.own[longest["stack"]]) if word else -1
    return word + (f" in {place_text(profile.frames[frame])}" if frame >= 0 else "")
