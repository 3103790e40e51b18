"""200 recordings of a training job, made up: 20 hosts, 10 days, two versions; and what queries over them have to find.

`python -m tests.fleet.made DIR [SPANS]` writes them with so many spans each (1,250,000 of 80 bytes: 20 GB in all).
Their times differ by some percent at random, and by what was planted: version 1.5 has a slower `tokenize`, host node-07
(rank 7) a slower disk, and on one day all wait longer for the network.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bpfprof.fleet.layout import recording_id
from bpfprof.fleet.writer import write_recording
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import PROFILE_MARK_DTYPE, Interner, Profile, Quality, RecordingInfo, ThreadTime
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.profile.weights import weights_of

HOSTS, DAYS, THREADS = 20, 10, 16
SECONDS = 10
SLOW_HOST, SLOW_DISK = 7, 4.0
SLOWER, SLOWER_BY = "tokenize", 1.4  # from version 1.5 on
NEW_FROM_DAY = 5
BAD_DAY, BAD_NET = 7, 2.0
STEPS, SLOW_STEPS = 100, 80  # of the first thread of a recording; of one of the slow host
SPREAD = 0.03  # of each time, from recording to recording
FULL_SPANS = 1_250_000
_FIRST = datetime.datetime(2026, 11, 1, 12, 0, tzinfo=datetime.timezone.utc)
_CALLERS = 60  # of each function, so it has as many stacks
_FEW_CALLERS = 4  # where not all spans are asked for
_DEPTH = 25

ON_CPU, READY, WAIT = ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.OFF_CPU


@dataclass(frozen=True)
class Activity:
    """part: of a thread's time."""

    function: str
    state: ThreadState
    part: float
    reason: str = ""
    native: str = ""
    is_idle: bool = False


ACTIVITIES = (
    Activity("tokenize", ON_CPU, 0.10),
    Activity("forward", ON_CPU, 0.14, native="cblas_sgemm"),
    Activity("backward", ON_CPU, 0.11, native="cblas_sgemm"),
    *(Activity(f"transform_{number}", ON_CPU, 0.004) for number in range(20)),
    Activity("forward", READY, 0.01),
    Activity("read_batch", WAIT, 0.04, "disk", "read"),
    Activity("allreduce", WAIT, 0.10, "net", "recv"),
    Activity("put_batch", WAIT, 0.05, "file-lock", "flock"),
    Activity("checkpoint", WAIT, 0.02, "disk", "fsync"),
    Activity("next_job", WAIT, 0.0, "poll", "poll", is_idle=True),  # the rest of the time
)

# What bpfprof/known/phases.txt makes of them.
PHASES = {"read_batch": "data wait", "forward": "forward", "backward": "backward", "allreduce": "communication"}


@dataclass
class Known:
    """Nanoseconds. functions: by (function, state), of all; waits: by (date, reason); rates: by (host, reason,
    function), reasons with the states of what is no wait; work: by (version), without the run queue; phases: by (host,
    phase), of the first thread, whose steps have all its time."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    rates: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    by_version: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, one: Recording) -> None:
        """The times of one more."""
        for activity, ns in zip(ACTIVITIES, one.times()[0].tolist()):
            self.phases[one.host, PHASES.get(activity.function, "other")] += ns
        for activity, ns in zip(ACTIVITIES, one.times().sum(axis=0).tolist()):
            if activity.is_idle:
                continue
            state = {ON_CPU: "cpu", READY: "ready", WAIT: "wait"}[activity.state]
            self.functions[activity.function, state] += ns
            self.rates[one.host, activity.reason or state, activity.function] += ns
            if state != "cpu":
                self.waits[one.date, activity.reason or state] += ns
            if state != "ready":
                self.work[one.version] += ns
                self.by_version[one.version, activity.function] += ns


@dataclass(frozen=True)
class Recording:
    """One of them, by its number."""

    number: int
    hosts: int = HOSTS

    @property
    def host_number(self) -> int:
        return self.number % self.hosts

    @property
    def day(self) -> int:
        return self.number // self.hosts

    @property
    def host(self) -> str:
        return f"node-{self.host_number:02d}"

    @property
    def version(self) -> str:
        return "1.5" if self.day >= NEW_FROM_DAY else "1.4"

    @property
    def began(self) -> datetime.datetime:
        return _FIRST + datetime.timedelta(days=self.day, minutes=self.host_number)

    @property
    def date(self) -> str:
        return f"{self.began:%Y-%m-%d}"

    @property
    def labels(self) -> dict[str, str]:
        return {"version": self.version, "rank": str(self.host_number), "job": "made"}

    def times(self) -> np.ndarray:
        """Nanoseconds of each thread in each activity."""
        random = np.random.default_rng(self.number)
        parts = np.array([each.part for each in ACTIVITIES])
        for place, each in enumerate(ACTIVITIES):
            parts[place] *= SLOWER_BY if each.function == SLOWER and self.day >= NEW_FROM_DAY else 1
            parts[place] *= SLOW_DISK if each.function == "read_batch" and self.host_number == SLOW_HOST else 1
            parts[place] *= BAD_NET if each.reason == "net" and self.day == BAD_DAY else 1
        drawn = parts * random.normal(1, SPREAD, (THREADS, len(parts)))
        times = np.rint(drawn * (SECONDS * 1e9)).astype(np.int64)
        times[:, -1] = SECONDS * 1_000_000_000 - times[:, :-1].sum(axis=1)
        assert (times >= 0).all()
        return times

    def profile(self, span_count: int) -> Profile:
        """With about so many spans."""
        interner, stacks = _stacks(_CALLERS if span_count == FULL_SPANS else _FEW_CALLERS)
        times, random = self.times(), np.random.default_rng(1000 + self.number)
        spans = np.concatenate(
            [_spans(thread, of_thread, stacks, span_count // THREADS, random) for thread, of_thread in enumerate(times)]
        )
        return Profile(
            info=RecordingInfo(
                command_line=("python", "train.py"),
                started_unix_ns=int(self.began.timestamp()) * 1_000_000_000 + self.number,
                duration_ns=SECONDS * 1_000_000_000,
                host_name=self.host,
                kernel_release="6.1.0",
                bpfprof_version="0.1.0",
                rate_hz=99,
            ),
            threads=tuple(_thread(thread, of_thread) for thread, of_thread in enumerate(times)),
            frames=tuple(interner.frames),
            stacks=tuple(interner.stacks),
            weights=weights_of(spans, spans["stack"]),
            quality=Quality(complete_count=len(spans)),
            spans=spans,
            marks=self.steps(),
            mark_names=("step",),
        )

    def steps(self) -> np.ndarray:
        """Marks of equal length, which have all the time of the first thread."""
        count = SLOW_STEPS if self.host_number == SLOW_HOST else STEPS
        edges = np.arange(count + 1) * (SECONDS * 1_000_000_000 // count)
        marks = np.zeros(count, PROFILE_MARK_DTYPE)
        marks["start_ns"], marks["duration_ns"] = edges[:-1], np.diff(edges)
        return marks

    def write(self, folder: Path, span_count: int) -> Path:
        """As `bpfprof export` does."""
        profile = self.profile(span_count)
        start = {"started_unix_ns": profile.info.started_unix_ns, "host_name": self.host}
        return write_recording(profile, recording_id(start), self.labels, folder)


def recordings(hosts: int = HOSTS, days: int = DAYS) -> Iterator[Recording]:
    """All of them."""
    return (Recording(number, hosts) for number in range(hosts * days))


@functools.lru_cache(1)
def _stacks(callers: int) -> tuple[Interner, np.ndarray]:
    """For each activity its stacks, the same in all recordings."""
    interner = Interner()
    return interner, np.array([[_stack(interner, each, caller) for caller in range(callers)] for each in ACTIVITIES])


def _stack(interner: Interner, activity: Activity, caller: int) -> int:
    frames = [Frame(FrameKind.PYTHON, f"level_{depth}", "/srv/job/train.py", depth + 1) for depth in range(_DEPTH)]
    frames.append(Frame(FrameKind.PYTHON, f"caller_{caller}", "/srv/job/train.py", 100 + caller))
    frames.append(Frame(FrameKind.PYTHON, activity.function, "/srv/job/model.py", 10))
    if activity.native:
        library = "/usr/lib/libopenblas.so.0" if activity.native.startswith("cblas") else "/usr/lib/libc.so.6"
        frames.append(Frame(FrameKind.NATIVE, activity.native, library))
    if activity.state == READY:
        frames.append(Frame(FrameKind.RUNQUEUE))
    if activity.state == WAIT:
        frames.append(Frame(FrameKind.WAIT, activity.reason))
    return interner.stack(frames)


def _spans(thread: int, times: np.ndarray, stacks: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """In an order and of lengths by chance; those of an activity sum to its time."""
    each = np.maximum(1, np.rint(count * times / times.sum())).astype(np.int64) * (times > 0)
    which = random.permutation(np.repeat(np.arange(len(times)), each))
    spans = np.zeros(len(which), SPAN_DTYPE)
    drawn = random.exponential(1, len(which))
    of_activity = np.bincount(which, drawn, len(times))
    duration = np.floor(drawn * (times / np.maximum(of_activity, 1e-9))[which]).astype(np.int64)
    firsts = np.unique(which, return_index=True)
    rest = times - np.bincount(which, duration, len(times)).astype(np.int64)
    duration[firsts[1]] += rest[firsts[0]]
    states = np.array([int(activity.state) for activity in ACTIVITIES])
    reasons = np.array([reason_number(it.reason) if it.reason else 0 for it in ACTIVITIES])
    spans["duration_ns"] = spans["stands_for_ns"] = duration
    spans["start_ns"] = np.cumsum(duration) - duration
    spans["thread"], spans["count"] = thread, 1
    spans["stack"] = stacks[which, random.integers(0, stacks.shape[1], len(which))]
    spans["state"], spans["reason"] = states[which], reasons[which]
    spans["flags"] = np.where([activity.is_idle for activity in ACTIVITIES], int(SpanFlag.IDLE), 0)[which]
    spans["wait"] = np.where(spans["state"] == WAIT, np.arange(1, len(which) + 1), 0)
    return spans


def _thread(thread: int, times: np.ndarray) -> ThreadTime:
    by_state = {state: 0 for state in (ON_CPU, READY, WAIT)}
    for activity, ns in zip(ACTIVITIES, times.tolist()):
        by_state[activity.state] += ns
    total = int(times.sum())
    return ThreadTime(Pid(100), Tid(100 + thread), "python", f"worker-{thread}", 0, total, *by_state.values(), 1, 1)


def _write(number: int, folder: str, span_count: int) -> None:
    Recording(number).write(Path(folder), span_count)


def main() -> None:
    folder, span_count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else FULL_SPANS
    with ProcessPoolExecutor(2) as pool:
        for done in [pool.submit(_write, number, folder, span_count) for number in range(HOSTS * DAYS)]:
            done.result()


if __name__ == "__main__":
    main()
