"""Programs that hang, attached late, early, launched and among all: what `dump`, `report` and `offcpu` say of them.

For each thread that hangs, by the program's own account: what it waits for, and who has it; and who waits for whom in a
circle. What is wrong is in capitals; what is right but not known is `?`, and UNTOLD says why it may be.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import ALL_INTERPRETERS, bpfprof, program, recording, running
from tests.oracles import healthy
from tests.oracles.programs import chosen, show

KINDS = (
    *("circle", "circle_acquired", "circle_of_rlocks", "circle_of_processes", "circle_of_files", "handler", "in_del"),
    *("pool_of_itself", "loop_of_itself", "twice", "held", "killed_holder", "held_at_fork", "never_set"),
    *("empty_queue", "full_pipe", "file_locked", "range_locked", "child", "no_answer", "no_answer_select"),
    *("sqlite_busy", "sqlite_own", "manager"),
)
DEADLOCKS = KINDS[: KINDS.index("twice")]
WAYS = ("late", "early", "launched", "all")
UNTOLD = {
    "circle_acquired": "a plain lock does not say who has it",
}
VERSIONS = ("debian-3.11", "3.13")
RECORD_S, _TOGETHER = 2.0, 3  # what is looked at when a recording ends has two seconds
_SETTLED_S = 15.0  # of a recording in which the program starts
_LIFE = 12  # times what it did before it hung: what hung for less of its life is not all that a recording is about
# What of a recording is no hang: a library that waits for a time at most, again and again.
BOUNDS = {"sqlite_busy": "lock", "sqlite_own": "lock"}


@dataclass(frozen=True)
class Truth:
    """waits: by thread (reason, who has it; 0: nobody who is alive, None: no one in particular)."""

    pid: int
    waits: dict[int, tuple[str, int | None]]
    circles: list[list[int]]

    @classmethod
    def of(cls, line: str) -> Truth:
        """A line `ready PID JSON`."""
        _, pid, text = line.split(maxsplit=2)
        found = json.loads(text)
        waits = {int(tid): (reason, holder) for tid, (reason, holder) in found["waits"].items()}
        return cls(int(pid), waits, sorted(sorted(it) for it in found["circles"]))

    @property
    def pids(self) -> list[int]:
        """Of the processes that hang."""
        return sorted({_process_of(tid) for tid in self.waits} | {self.pid})


@dataclass
class Score:
    """What is not right, in words."""

    faults: list[str] = field(default_factory=list)

    def add(self, who: str, what: str) -> None:
        if f"{who}:{what}" not in self.faults:
            self.faults.append(f"{who}:{what}")

    @property
    def is_wrong(self) -> bool:
        return any(re.search("[A-Z]{3}", it) for it in self.faults)

    def __format__(self, spec: str) -> str:
        return format("ok" if not self.faults else "WRONG" if self.is_wrong else "?", spec)


def _process_of(tid: int) -> int:
    with open(f"/proc/{tid}/status") as file:
        return int(next(line for line in file if line.startswith("Tgid:")).split()[1])


def run(words: Sequence[str], folder: Path, versions: Sequence[str] = VERSIONS) -> None:
    if words[:1] == ["healthy"]:
        for version in versions:
            healthy.run(words[1:], folder, version)
        return
    ways = [it for it in WAYS if it in words] or [*WAYS]
    words = [it for it in words if it not in WAYS]
    kinds = [*DEADLOCKS] if words == ["deadlocks"] else chosen(KINDS, words)
    for version in versions:
        if version not in ALL_INTERPRETERS:
            continue
        found = {way: _found(way, ALL_INTERPRETERS[version], kinds, folder) for way in ways}
        show(version, found, kinds)
        for way, scores in found.items():
            for kind, score in scores.items():
                if score.faults:
                    why = f" ({UNTOLD[kind]})" if kind in UNTOLD else ""
                    print(f"    {kind} {way}: {', '.join(score.faults)}{why}")
        every = [score for scores in found.values() for score in scores.values()]
        right, wrong = sum(not it.faults for it in every), sum(it.is_wrong for it in every)
        print(f"{version}: {right} of {len(every)} right, {wrong} wrong, in others something is not known", flush=True)


def _found(way: str, python: str, kinds: Sequence[str], folder: Path) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    size = 1 if way == "launched" else _TOGETHER
    for begin in range(0, len(kinds), size):
        part, path = kinds[begin : begin + size], folder / "x.bpfprof"
        with _hung(way, python, part, path) as truths:
            scores |= {kind: Score() for kind in truths}
            if way == "late":
                _judge_dumps(scores, truths)
            _judge_reports(scores, truths, path)
    return scores


@contextmanager
def _hung(way: str, python: str, kinds: Sequence[str], path: Path) -> Iterator[dict[str, Truth]]:
    """They hang, or did so until they were killed; what they know, once they were recorded."""
    commands = {kind: [python, program("stuck.py"), kind] for kind in kinds}
    with ExitStack() as stack:
        if way == "launched":
            ((kind, command),) = commands.items()
            done = bpfprof("record", "-d", _SETTLED_S, "--kill", "-o", path, "--", *command, check=None)
            yield {kind: Truth.of(done.stdout[done.stdout.index("ready ") :].splitlines()[0])}
            return
        if way == "early":
            targets = {it: stack.enter_context(running(*command, "later")) for it, command in commands.items()}
            pids = [word for target in targets.values() for word in ("-p", target.pid)]
            recorder = stack.enter_context(recording(*pids, "-o", path))
            for target in targets.values():
                target.tell("hang")
            begin_s = time.monotonic()
            truths = {it: Truth.of(target.answer()) for it, target in targets.items()}
            _settle(truths)
            time.sleep(max(RECORD_S, _LIFE * (time.monotonic() - begin_s)))
            recorder.end()
        else:
            targets = {it: stack.enter_context(running(*command)) for it, command in commands.items()}
            truths = {it: Truth.of(target.first_line) for it, target in targets.items()}
            _settle(truths)
            pids = [word for target in targets.values() for word in ("-p", target.pid)]
            whom = ["-a"] if way == "all" else pids
            bpfprof("record", *whom, "-d", RECORD_S, "-o", path, check=None)  # beside a flood some is lost
        yield truths


def _settle(truths: Mapping[str, Truth]) -> None:
    for truth in truths.values():
        for pid in truth.pids:
            wait_until_asleep(pid)


def _judge_dumps(scores: dict[str, Score], truths: Mapping[str, Truth]) -> None:
    pids = [pid for truth in truths.values() for pid in truth.pids]
    processes = {it["pid"]: it for it in json.loads(bpfprof("dump", "-j", *pids).stdout)["processes"]}
    for kind, truth in truths.items():
        score, own = scores[kind], [processes[pid] for pid in truth.pids]
        threads = {thread["tid"]: thread for process in own for thread in process["threads"]}
        circles = {tuple(sorted(it)) for process in own for it in process["deadlocks"]}
        _judge_circles(score, "dump", truth, [[*it] for it in sorted(circles)])
        for tid, (reason, holder) in truth.waits.items():
            if threads[tid]["reason"] != reason:
                score.add("dump", f"REASON {threads[tid]['reason']}")
            _judge_holder(score, "dump", holder, threads[tid]["waits_for"] or {}, True)
            if threads[tid]["idle"]:
                score.add("dump", "idle")


def _judge_reports(scores: dict[str, Score], truths: Mapping[str, Truth], path: Path) -> None:
    pid_of, reasons = {}, _reasons(path)
    for thread in json.loads(bpfprof("report", path, "-f", "json").stdout)["threads"]:
        pid_of[thread["tid"]] = thread["pid"]
    for kind, truth in truths.items():
        pids = {pid_of.get(tid, truth.pid) for tid in (truth.pid, *truth.waits)}
        processes = "|".join(rf"\({pid}\)" for pid in pids)
        _judge_report(scores[kind], truth, path, processes, reasons, BOUNDS.get(kind, "stuck"))


def _judge_report(
    score: Score, truth: Truth, path: Path, processes: str, reasons: Mapping[int, str], bound: str
) -> None:
    report = json.loads(bpfprof("report", path, "--process", processes, "-f", "json").stdout)
    threads = {thread["tid"]: thread for thread in report["threads"]}
    _judge_circles(score, "report", truth, [sorted(it) for it in report["deadlocks"]])
    verdict = report["verdict"]
    if verdict["bound"] != bound:
        score.add("report", f"VERDICT {verdict['sentence']}")
    for tid, (reason, holder) in truth.waits.items():
        if tid not in threads:
            score.add("report", "NO THREAD")
            continue
        if reasons.get(tid) != reason:
            score.add("report", f"REASON {reasons.get(tid)}")
        if threads[tid]["stuck"] != (bound == "stuck"):
            score.add("report", "NOT STUCK")
        _judge_holder(score, "report", holder, threads[tid]["waits_for"] or {}, False)
    said = "".join(bpfprof("offcpu", path, "--process", processes).stdout.split())
    lines = said.count("DEADLOCK:")
    if lines != len(report["deadlocks"]):
        score.add("offcpu", f"{lines} DEADLOCKS")
    first = "".join(verdict["sentence"].partition(". ")[0].rstrip(".").split())
    if verdict["bound"] == "stuck" and not lines and first not in said:
        score.add("offcpu", "OTHER SENTENCE")


def _reasons(path: Path) -> dict[int, str]:
    """By thread: what it waited for longest."""
    most: dict[int, tuple[int, str]] = {}
    for line in bpfprof("report", path, "-f", "collapsed").stdout.splitlines():
        found = re.match(r"process [^;]* \(\d+\);thread [^;]* \((\d+)\).*\[off-cpu: ([^\]]+)\] (\d+)$", line)
        if found:
            tid, reason, us = int(found[1]), found[2], int(found[3])
            most[tid] = max(most.get(tid, (0, "")), (us, reason))
    return {tid: reason for tid, (_, reason) in most.items()}


def _judge_circles(score: Score, who: str, truth: Truth, found: list[list[int]]) -> None:
    if any(it not in truth.circles for it in found):
        score.add(who, "FALSE CIRCLE")
    if any(it not in found for it in truth.circles):
        score.add(who, "circle")


def _judge_holder(score: Score, who: str, holder: int | None, wanted: Mapping[str, Any], is_dump: bool) -> None:
    named = {wanted.get("held_by_tid"), wanted.get("held_by_pid")} - {None}
    if not holder:
        if named:
            score.add(who, "HOLDER")
        elif holder == 0 and not is_dump and not wanted.get("nobody"):
            score.add(who, "nobody")
    elif not named and not str(wanted.get("held_by")).endswith(f"({holder})"):
        score.add(who, "holder")
    elif named and holder not in named:
        score.add(who, "HOLDER")
