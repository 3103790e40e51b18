"""A profile of some seconds of a recording that goes on -> what a live view shows of it, and sums since it began."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.threads.at_end import NowGroup, now_of
from bpfprof.query.threads.roles import Role, roles_of
from bpfprof.query.work.places import places_of
from bpfprof.query.work.shares import GIL, HANDED
from bpfprof.query.work.table import WAIT_TIME, Work, kinds_of, work_of

_TREND = 10  # values

Key = tuple[str, str]  # of a place: function, file


@dataclass
class LivePlace:
    """A function, as query.places has it; frame: its line with most time of its own. shares: place in SHARES -> ns."""

    frame: Frame
    cpu_ns: int = 0
    ready_ns: int = 0
    wait_ns: int = 0
    total_ns: int = 0
    shares: Counter[int] = field(default_factory=Counter)

    @property
    def key(self) -> Key:
        """What it is known by from one moment to the next."""
        return self.frame.name, self.frame.file

    @property
    def own_ns(self) -> int:
        """All of its own."""
        return self.cpu_ns + self.ready_ns + self.wait_ns

    @property
    def gil_ns(self) -> int:
        """Of its waits those for the GIL."""
        return self.shares[GIL]

    def add(self, other: LivePlace) -> None:
        """The same function at another time."""
        self.frame = other.frame
        self.cpu_ns += other.cpu_ns
        self.ready_ns += other.ready_ns
        self.wait_ns += other.wait_ns
        self.total_ns += other.total_ns
        self.shares.update(other.shares)


@dataclass(frozen=True)
class Sums:
    """What can be added up from time to time: all_shares: nanoseconds of all threads by SHARES, then idle and waits for
    others; places: of all threads."""

    all_shares: tuple[int, ...]
    places: list[LivePlace]


@dataclass(frozen=True)
class Moment:
    """Of duration_ns. shares: nanoseconds of the verdict's whole, all_shares: of all threads, both by SHARES, then idle
    and waits for others; cpu_ns: of all threads on a CPU. places: of all threads."""

    duration_ns: int
    shares: tuple[int, ...]
    all_shares: tuple[int, ...]
    cpu_ns: int
    thread_count: int
    verdict: Verdict
    places: list[LivePlace]
    roles: list[Role]
    profile: Profile
    now: list[NowGroup]

    @property
    def whole_ns(self) -> int:
        """The time of the threads that count."""
        return sum(self.shares)


def moment_of(profile: Profile, states: Mapping[tuple[int, int], ThreadState] | None = None) -> Moment:
    """The profile has its spans. states: what threads did when it ended, by (pid, tid)."""
    work = work_of(profile)
    verdict = verdict_of(profile, work)
    sums = _sums(profile, work)
    return Moment(
        profile.info.duration_ns,
        tuple(verdict.whole.share_ns()),
        sums.all_shares,
        sum(thread.on_cpu_ns for thread in profile.threads),
        len(profile.threads),
        verdict,
        sums.places,
        roles_of(profile, work),
        profile,
        now_of(profile, work, states or {}),
    )


def sums_of(profile: Profile) -> Sums:
    """Those of a moment, without what only one who looks at it needs. The profile has its spans."""
    return _sums(profile, work_of(profile))


def _sums(profile: Profile, work: Work) -> Sums:
    places = [
        LivePlace(
            profile.frames[place.frame],
            place.cpu_ns,
            place.ready_ns,
            place.wait_ns,
            place.total_ns,
            _counted((share, ns) for (share, _), ns in place.mostly),
        )
        for place in places_of(profile, work)
    ]
    return Sums(tuple(work.share_ns().tolist()), places)


@dataclass(frozen=True)
class Closer:
    """One function of a moment, in nanoseconds, most first.

    lines: those with time of their own, as (line, CPU, ready, wait); callers: Python frames that called it; reasons:
    what it waited for. pid: of a process that it ran in, 0: none.
    """

    lines: list[tuple[int, int, int, int]]
    callers: list[tuple[Frame, int]]
    reasons: list[tuple[str, int]]
    pid: Pid


def closer(moment: Moment, key: Key) -> Closer:
    """What a moment knows of one of its places."""
    profile, work = moment.profile, work_of(moment.profile)
    rows = work.working
    own = work.own[rows["stack"]]
    is_it = np.array([*((frame.name, frame.file) == key for frame in profile.frames), False])
    lines: dict[int, list[int]] = {}
    reasons: Counter[str] = Counter()
    kinds = kinds_of(rows).tolist()
    places = np.flatnonzero(is_it[own]).tolist()
    for place in places:
        of_line = lines.setdefault(profile.frames[own[place]].line, [0, 0, 0])
        of_line[kinds[place]] += int(rows["ns"][place])
        if kinds[place] == WAIT_TIME:
            reasons[reason_text(int(rows["reason"][place])) or "unknown"] += int(rows["ns"][place])
    callers: Counter[Key] = Counter()
    frame_of: dict[Key, Frame] = {}
    for stack, ns in zip(rows["stack"].tolist(), rows["ns"].tolist()):
        frames = [
            profile.frames[each] for each in profile.stacks[stack] if profile.frames[each].kind == FrameKind.PYTHON
        ]
        at = next(
            (place for place in reversed(range(len(frames))) if (frames[place].name, frames[place].file) == key), 0
        )
        if at:
            caller = frames[at - 1]
            callers[caller.name, caller.file] += ns
            frame_of[caller.name, caller.file] = caller
    return Closer(
        sorted(((line, ns[0], ns[1], ns[2]) for line, ns in lines.items()), key=lambda row: -sum(row[1:])),
        [(frame_of[it], ns) for it, ns in callers.most_common()],
        reasons.most_common(),
        Pid(profile.threads[rows["thread"][places[0]]].pid if places else 0),
    )


def _counted(pairs) -> Counter[int]:  # type: ignore[no-untyped-def]
    found: Counter[int] = Counter()
    for share, ns in pairs:
        found[share] += ns
    return found


class SinceStart:
    """Places of moments that follow one another without a gap, added up; and how their parts went up and down."""

    def __init__(self) -> None:
        self._places: dict[Key, LivePlace] = {}
        self._shares = [0] * (HANDED + 1)
        self._trends: dict[Key, deque[float]] = {}

    def add(self, moment: Moment | Sums) -> None:
        """Takes all of a moment, which begins where the one before ended."""
        self._shares = _added(self._shares, moment.all_shares)
        for place in moment.places:
            self._places.setdefault(place.key, LivePlace(place.frame)).add(place)

    def with_last(self, moment: Moment | Sums | None) -> tuple[list[LivePlace], list[int]]:
        """(all places, nanoseconds by SHARES), those of a moment that was not added yet with them."""
        places = {key: LivePlace(place.frame) for key, place in self._places.items()}
        for place in (*self._places.values(), *(moment.places if moment else ())):
            places.setdefault(place.key, LivePlace(place.frame)).add(place)
        return [*places.values()], _added(self._shares, moment.all_shares) if moment else self._shares

    def note(self, moment: Moment) -> None:
        """Takes the parts of the whole of a moment that may have been noted before."""
        parts = {place.key: place.own_ns / max(moment.whole_ns, 1) for place in moment.places}
        for key in [key for key in self._trends if key not in parts]:
            del self._trends[key]
        for key, part in parts.items():
            self._trends.setdefault(key, deque(maxlen=_TREND)).append(part)

    def trends(self) -> dict[Key, list[float]]:
        """For each place its last parts, oldest first."""
        return {key: [*parts] for key, parts in self._trends.items()}


def _added(sums: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip(sums, others)]
