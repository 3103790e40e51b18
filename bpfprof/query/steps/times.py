"""Steps -> their figures: how long they took, what of it each phase had, and what the slow ones did more of."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import Ints, owner_functions, wait_owners
from bpfprof.query.steps.phases import DATA
from bpfprof.query.steps.steps import Floats, Steps, pieces_of

_FAR = 5.0  # so many times the usual distance from the middle is far,
_LARGE = 0.2  # and so much of the middle
_NORMAL = 1.4826  # standard deviations of a normal distribution for each median distance from its middle
_MOST_CAUSES, _LEAST_PART = 3, 0.1  # of what an outlier took more


@dataclass(frozen=True)
class Figures:
    """Nanoseconds. error: standard error of the mean; share: of all steps' time."""

    mean_ns: float
    error_ns: float
    p50_ns: float
    p99_ns: float
    share: float = 1.0


@dataclass(frozen=True)
class Excess:
    """What a step has more of than others do: a phase, or a function on a CPU, ready (`runqueue`) or in a wait."""

    phase: str
    function: Frame | None
    state: str  # of a function: `cpu`, `runqueue`, or the reason of its waits
    ns: float


@dataclass(frozen=True)
class Outlier:
    """One step, by its number from 0, that took longer than others do; most of what it did more of first."""

    step: int
    duration_ns: int
    phases: tuple[Excess, ...]
    functions: tuple[Excess, ...]


@dataclass(frozen=True)
class StepTimes:
    """Of Steps, of which there is one at least. outliers: the longest first."""

    all: Figures
    phases: dict[str, Figures]
    outliers: tuple[Outlier, ...]

    @property
    def per_second(self) -> float:
        """Steps."""
        return 1e9 / max(self.all.mean_ns, 1.0)

    @property
    def reader_ratio(self) -> float:
        """How much of a step is waiting for data."""
        return self.phases[DATA].share if DATA in self.phases else 0.0


def step_times(profile: Profile, steps: Steps) -> StepTimes:
    """Phases in which no time was spent are left out."""
    durations = steps.durations_ns
    whole = max(float(durations.sum()), 1.0)
    phases = {
        name: figures(steps.phase_ns[:, place], whole)
        for place, name in enumerate(steps.phases)
        if steps.phase_ns[:, place].sum() * 1e4 >= whole
    }
    return StepTimes(figures(durations, whole), phases, _outliers(profile, steps))


def figures(ns: npt.NDArray[np.generic], whole_ns: float) -> Figures:
    """For each step's time."""
    values = ns.astype(np.float64)
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    p50, p99 = np.quantile(values, [0.5, 0.99]).tolist()
    return Figures(float(values.mean()), error, p50, p99, float(values.sum()) / whole_ns)


def _outliers(profile: Profile, steps: Steps) -> tuple[Outlier, ...]:
    durations = steps.durations_ns
    middle = float(np.median(durations))
    usual = _NORMAL * float(np.median(np.abs(durations - middle)))
    slow = np.flatnonzero(durations > middle + max(_FAR * usual, _LARGE * middle))
    if not len(slow):
        return ()
    is_slow = np.zeros(len(durations), np.bool_)
    is_slow[slow] = True
    usual_phases = np.median(steps.phase_ns[~is_slow], axis=0)
    functions = _by_function(profile, steps, is_slow)
    found = []
    for step in slow[np.argsort(-durations[slow], kind="stable")].tolist():
        more_ns = float(durations[step]) - middle
        more = steps.phase_ns[step] - usual_phases
        of_phases = [
            Excess(steps.phases[each], None, "", float(more[each])) for each in np.argsort(-more, kind="stable")
        ]
        found.append(
            Outlier(step, int(durations[step]), _largest(of_phases, more_ns), _largest(functions[step], more_ns))
        )
    return tuple(found)


def _largest(found: list[Excess], more_ns: float) -> tuple[Excess, ...]:
    return tuple(each for each in found[:_MOST_CAUSES] if each.ns >= _LEAST_PART * more_ns)


def _by_function(profile: Profile, steps: Steps, is_slow: npt.NDArray[np.bool_]) -> dict[int, list[Excess]]:
    """For each slow step what it did more of than the mean of the others."""
    assert profile.spans is not None
    pieces = pieces_of(profile, steps)
    spans = profile.spans[pieces.span]
    owners = owner_functions(profile.frames, np.array([*wait_owners(profile.frames, profile.stacks), -1], np.int64))
    state = np.where(
        spans["state"] == ThreadState.OFF_CPU, spans["reason"].astype(np.int64) + len(ThreadState), spans["state"]
    )
    keys, which = np.unique(_pairs(owners[spans["stack"]] + 1, state), return_inverse=True)
    of_slow = is_slow[pieces.step]
    usual = np.bincount(which[~of_slow], pieces.ns[~of_slow], len(keys)) / max(1, int((~is_slow).sum()))
    found: dict[int, list[Excess]] = {}
    edges = np.searchsorted(pieces.step, np.arange(len(is_slow) + 1)).tolist()  # pieces are in the order of time
    for step in np.flatnonzero(is_slow).tolist():
        own = slice(edges[step], edges[step + 1])
        more: Floats = np.bincount(which[own], pieces.ns[own], len(keys)) - usual
        found[step] = [
            _excess(profile, int(keys[place]), float(more[place]))
            for place in np.argsort(-more, kind="stable")[:_MOST_CAUSES].tolist()
        ]
    return found


def _pairs(owner: Ints, state: Ints) -> Ints:
    return np.asarray(owner << 32 | state)


def _excess(profile: Profile, key: int, ns: float) -> Excess:
    owner, number = (key >> 32) - 1, key & 0xFFFFFFFF
    reason = number - len(ThreadState)
    words = {int(ThreadState.ON_CPU): "cpu", int(ThreadState.RUNQUEUE): "runqueue"}
    state = words.get(number, reason_text(reason) if reason >= 0 else "unknown")
    return Excess("", profile.frames[owner] if owner >= 0 else None, state or "unknown", ns)
