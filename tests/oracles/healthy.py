"""Programs that go on, beside two that are always busy: false deadlocks and false holders in dumps and recordings.

Who had what when is known by the programs themselves; each holder that is named for a moment must be one of those.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bpfprof.capture.now import process_now
from bpfprof.commands.deadlocks import with_deadlocks
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.now import HELD
from bpfprof.proc import tasks
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, Target, bpfprof, program, running
from tests.oracles import holders
from tests.oracles.programs import chosen, record, started

OF_ITS_OWN = ("futures", "pools_of_pools", "imports", "joins", "tasks", "given_over")
# A monitor's threads take their lock again when they were woken, which is in no turn of theirs.
KINDS = (*(kind for kind in holders.EXACT if kind != "monitor"), *OF_ITS_OWN, "ordered")
LOOKS, RECORD_S, _TOGETHER = 10, 2, 4
Turns = dict[int, list[list[float]]]


@dataclass
class Seen:
    """looks: at programs; named: holders that were told."""

    looks: int = 0
    named: int = 0
    false_holders: int = 0
    false_deadlocks: int = 0
    stuck: int = 0

    def add(self, other: Seen) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def run(words: Sequence[str], folder: Path, version: str) -> None:
    kinds, whole = chosen(KINDS, words), Seen()
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            stack.enter_context(running(PYTHON, program("bounds.py"), "python"))
        for begin in range(0, len(kinds), _TOGETHER):
            commands = {
                kind: _command(ALL_INTERPRETERS[version], kind, folder) for kind in kinds[begin : begin + _TOGETHER]
            }
            with started(commands) as targets:
                seen = {kind: Seen() for kind in targets}
                for _ in range(LOOKS):
                    for kind, target in targets.items():
                        _dump(seen[kind], target)
                _record(seen, targets, folder / "x.bpfprof")
            for kind, of_kind in seen.items():
                print(f"{kind:16} {of_kind}", flush=True)
                whole.add(of_kind)
    print(f"{version}: {len(kinds)} programs, {whole}", flush=True)


def _command(python: str, kind: str, folder: Path) -> holders.Command:
    if kind in OF_ITS_OWN:
        return (python, program("healthy.py"), kind), {}
    if kind == "ordered":
        return (python, program("ordered_locks.py")), {}
    times = "3" if kind == "sqlite" else "30"  # longer than a look; who waits for SQLite may never have its turn
    return holders.command(python, kind, folder)[0], {"HOLD_TIMES": times}


def _dump(seen: Seen, target: Target) -> None:
    """With `dump`'s own functions, as the command would take longer to start than to look."""
    pids = [Pid(target.pid), *tasks.children(Pid(target.pid))]
    begin_s, found = time.monotonic(), []
    for pid in pids:
        try:
            found.append(process_now(pid))
        except TargetError:
            continue
    processes = with_deadlocks(found)
    named = [
        (thread.tid, it.held_by_tid or Tid(it.held_by_pid or 0))
        for process in processes
        for thread in process.threads
        if (it := thread.waits_for) and it.kind in HELD and (it.held_by_tid or it.held_by_pid)
    ]
    turns = _turns(target, begin_s, time.monotonic())
    seen.looks += 1
    seen.false_deadlocks += len({tuple(it) for process in processes for it in process.deadlocks})
    _judge(seen, turns, named)


def _record(seen: Mapping[str, Seen], targets: Mapping[str, Target], path: Path) -> None:
    record(path, (target.pid for target in targets.values()), RECORD_S)
    with open(path, "rb") as file:
        recording = read_recording(file)
    tids = [int(thread.tid) for thread in recording.threads]
    kind_of = {}
    for kind, target in targets.items():
        pids = {target.pid, *tasks.children(Pid(target.pid))}
        own = {tid for tid, it in zip(tids, recording.threads) if recording.processes[it.process].pid in pids}
        kind_of |= dict.fromkeys(own, kind)
        named = list(_looks(tids, recording.lock_holders, own))
        if named:
            begin_s, end_s = min(it[0] for it in named) / 1e9, max(it[1] for it in named) / 1e9
            _judge(seen[kind], _turns(target, begin_s, end_s), [it[2:] for it in named])
        report = json.loads(
            bpfprof("report", path, "--process", "|".join(rf"\({it}\)" for it in pids), "-f", "json").stdout
        )
        seen[kind].looks += 1
        seen[kind].false_deadlocks += len(report["deadlocks"])
        seen[kind].stuck += report["verdict"]["bound"] == "stuck"


def _looks(tids: list[int], rows, own: set[int]) -> Iterator[tuple[int, int, int, int]]:  # type: ignore[no-untyped-def]
    """(begin, end, who waits, who has it)"""
    for begin_ns, end_ns, thread, holder, *_ in rows.tolist():
        if tids[thread] in own and holder:
            yield begin_ns, end_ns, tids[thread], tids[holder - 1]


def _turns(target: Target, begin_s: float, end_s: float) -> Turns:
    target.tell(f"{begin_s} {end_s}")
    return {int(tid): rows for tid, rows in json.loads(target.answer()).items()}


def _judge(seen: Seen, turns: Turns, named: Sequence[tuple[int, int]]) -> None:
    seen.named += len(named)
    seen.false_holders += sum(not _has_had(turns, *pair) for pair in named)


def _has_had(turns: Turns, waiting: int, holder: int) -> bool:
    """Whether one had what the other waited for. Of who waits for something of a library itself nothing is known."""
    wanted = turns.get(waiting, [])
    if not wanted or not turns.get(holder):
        return True
    return any(
        what == lock and got < had and gave > asked
        for what, asked, had, _ in wanted
        for lock, _, got, gave in turns[holder]
    )
