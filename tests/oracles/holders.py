"""Programs that know who held their locks, recorded -> of how much of the waited time the right holder is named.

For each moment in which a worker waits for a lock that another has, by its own log: whether the holder that the
recording has for this moment is one of those that had it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.waits.lock_holders import parts_of
from bpfprof.query.work.table import work_of
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import ALL_INTERPRETERS, program
from tests.oracles.programs import Command, by_interpreter, chosen, record, show, started

OF_THREADS = (
    *("lock", "locks", "hog", "timeout", "rlock", "rlocks", "entered", "condition", "monitor", "semaphore"),
    *("semaphores", "semaphore_hog", "of_two", "logging", "queue", "mutex", "mutexes"),
)
OF_PROCESSES = ("shared", "shareds", "spawned", "flock", "fcntl", "ranges", "sqlite", "manager")
EXACT = (*OF_THREADS, *OF_PROCESSES)
VERSIONS = ("3.8", "3.10", "3.12", "3.13", "sid-3.14", "sid-3.15")
RECORD_S = 3


Held = tuple[float, float, int]  # from, to, by whom


@dataclass
class Score:
    """In seconds: how long workers waited while another had the lock; of that, with the right holder, and with none."""

    waited_s: float = 0.0
    right_s: float = 0.0
    unknown_s: float = 0.0

    @property
    def right(self) -> float:
        return self.right_s / self.waited_s if self.waited_s else 0.0

    @property
    def wrong(self) -> float:
        return (self.waited_s - self.right_s - self.unknown_s) / self.waited_s if self.waited_s else 0.0

    def __format__(self, spec: str) -> str:
        named = 1 - self.unknown_s / max(self.waited_s, 1e-9)
        return format(f"{100 * self.right:.1f} ({100 * named:.0f})", spec)


@dataclass(frozen=True)
class Turn:
    """Of one worker with one lock: when it asked for it, had it, gave it back."""

    lock: int
    asked: float
    got: float
    gave: float


def run(words: Sequence[str], folder: Path, versions: Sequence[str] = VERSIONS) -> None:
    kinds = chosen(EXACT, words)
    found = by_interpreter(
        versions,
        lambda version: {kind: command(ALL_INTERPRETERS[version], kind, folder) for kind in kinds},
        lambda commands: scores(*recorded(folder / "x.bpfprof", commands, RECORD_S)),
    )
    show("right of the time that was waited in %, in brackets: named at all", found, kinds)
    for name, of_them in (("threads", OF_THREADS), ("processes", OF_PROCESSES)):
        own = [score for of_version in found.values() for kind, score in of_version.items() if kind in of_them]
        waited_s = sum(it.waited_s for it in own)
        if own:
            print(f"{name}: {100 * sum(it.right_s for it in own) / waited_s:.1f}% of {waited_s:.0f} s")


def recorded(
    path: Path, commands: Mapping[str, Command], seconds: float
) -> tuple[Profile, dict[str, dict[int, list[Turn]]]]:
    """(what all of them did, by kind and thread what they know)"""
    with started(commands) as targets:
        record(path, (target.pid for target in targets.values()), seconds)
        with open(path, "rb") as file:
            recording = read_recording(file)
        begin_s, end_s = recording.start["start_ns"] / 1e9, recording.end["end_ns"] / 1e9
        truths = {}
        for kind, target in targets.items():
            target.tell(f"{begin_s} {end_s}")
            answer: dict[str, Any] = json.loads(target.answer())
            truths[kind] = {int(tid): list(_turns(rows, begin_s, end_s)) for tid, rows in answer.items()}
    return build_profile(recording, ProfileOptions(with_spans=True)), truths


def _turns(rows: list[list[float]], begin_s: float, end_s: float) -> Iterator[Turn]:
    """On the clock of the recording."""
    for lock, *times in rows:
        yield Turn(int(lock), *(min(max(at, begin_s), end_s) - begin_s for at in times))


def scores(profile: Profile, truths: dict[str, dict[int, list[Turn]]]) -> dict[str, Score]:
    """By kind."""
    work = work_of(profile)
    found: dict[int, list[Held]] = {}
    tids = np.array([*(int(thread.tid) for thread in profile.threads), -1])
    waker_tids = np.array([-1, *(waker.tid for waker in profile.wakers)])
    waits = work.lock_waits[np.lexsort((work.lock_waits["thread"], work.lock_waits["number"]))]
    for rows in np.split(waits, np.flatnonzero(np.diff(waits["number"])) + 1):
        if len(rows):
            holder, _, row, start_ns, ns = parts_of(profile, rows)
            waiting = tids[rows["thread"][row]].tolist()
            for tid, begin, length, who in zip(waiting, start_ns.tolist(), ns.tolist(), waker_tids[holder].tolist()):
                found.setdefault(tid, []).append((begin / 1e9, (begin + length) / 1e9, who))
    return {kind: _score(truth, found) for kind, truth in truths.items()}


def _score(truth: dict[int, list[Turn]], found: dict[int, list[Held]]) -> Score:
    score = Score()
    held: dict[int, list[Held]] = {}
    for tid, turns in truth.items():
        for turn in turns:
            held.setdefault(turn.lock, []).append((turn.got, turn.gave, tid))
    for tid, turns in truth.items():
        parts = sorted(found.get(tid, []))
        for turn in turns:
            others = [it for it in held[turn.lock] if it[2] != tid and it[0] < turn.got and it[1] > turn.asked]
            named = [it for it in parts if it[0] < turn.got and it[1] > turn.asked]
            score.waited_s += _covered([_cut(it, turn) for it in others])
            right = [_cut(who, turn, had) for had in others for who in named if who[2] == had[2]]
            score.right_s += _covered(right)
            by_anyone = [_cut(who, turn, had) for had in others for who in named if who[2] >= 0]
            score.unknown_s += _covered([_cut(it, turn) for it in others]) - _covered(by_anyone)
    return score


def _cut(times: Held, turn: Turn, had: Held = (-1e9, 1e9, 0)) -> tuple[float, float]:
    return max(times[0], turn.asked, had[0]), min(times[1], turn.got, had[1])


def _covered(times: list[tuple[float, float]]) -> float:
    """How long one of them lasts."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(times):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def command(python: str, kind: str, folder: Path) -> Command:
    """Runs one kind."""
    return (python, program("lock_kinds.py"), kind, str(folder)), {}
