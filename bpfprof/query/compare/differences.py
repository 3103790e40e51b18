"""Slices of recordings before and after -> how the time of each function changed, and what of it is beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.query.compare.noise import Floats, Mean, Spread, chance, difference, errors_of_chance, mean
from bpfprof.query.compare.slices import SLICE_COUNT, Key, Slices

# Of time on a CPU as measured (tests/benchmarks/diff_pairs.py): memory is laid out differently in each run. Of time in
# waits more is taken: it depends on how busy the machine is.
_RUN_SPREAD = Spread(np.array([[0.015], [0.05]]), 8)
# Of whole runs: a virtual CPU is as fast as its neighbours let it be.
_WHOLE_RUN_SPREAD = Spread(np.array([[0.1], [0.1]]), 1)
LEAST_SHARE = 0.01  # of the work, before or after: what takes less is not tested
_IN_DOUBT = 4  # two errors squared: so much less likely may be that one got slower, to be told, than others faster
_TESTED = (0, 2)  # own time on a CPU, and in waits
FALSE_ALARMS = 0.02  # the chance that any function of two runs of one program is said to differ


@dataclass(frozen=True)
class Change:
    """One figure: seconds for each second of work, or of a run. error: standard error of the difference.

    needed: a difference of less would not have been found; infinite where none was looked for. left: by how much it has
    more or less time only because others, of which that was found, have less or more.
    """

    before: float
    after: float
    error: float
    freedom: float
    needed: float = math.inf
    is_found: bool = False
    left: float = 0.0

    @property
    def difference(self) -> float:
        """Above 0 where it takes longer than before."""
        return self.after - self.before

    @property
    def chance(self) -> float:
        """How likely a difference of this size is where nothing has changed."""
        return chance(self.errors, self.freedom) if self.error else 1.0

    @property
    def errors(self) -> float:
        """How many errors the difference is, without what others have left."""
        return (self.difference - self.left) / self.error if self.error else 0.0

    def percent(self, seconds: float) -> float:
        """So many of what it was before; infinite of what is new."""
        return 100 * seconds / self.before if self.before else math.inf

    @property
    def is_left(self) -> bool:
        """Whether it differs by more than twice its error, but by itself does not."""
        return not self.is_found and abs(self.difference) > 2 * self.error >= abs(self.difference - self.left)

    def is_slower(self, percent: float) -> bool:
        """By more than so many percent, and beyond twice its error, by itself; of what was tested."""
        by_itself = self.difference - self.left
        return by_itself > 2 * self.error and self.percent(by_itself) > percent and self.needed < math.inf


@dataclass(frozen=True)
class Difference:
    """Of one function, thread ...: its own and its total time, on a CPU and in waits."""

    key: Key
    cpu: Change
    cpu_total: Change
    wait: Change
    wait_total: Change

    @property
    def changes(self) -> tuple[Change, Change]:
        """What is tested."""
        return self.cpu, self.wait

    @property
    def both(self) -> Change:
        """Own time on a CPU and in waits."""
        return _sum(self.cpu, self.wait)

    @property
    def both_total(self) -> Change:
        """The same of total time."""
        return _sum(self.cpu_total, self.wait_total)


def _sum(one: Change, other: Change) -> Change:
    """Their errors are taken as independent."""
    error = math.hypot(one.error, other.error)
    return Change(one.before + other.before, one.after + other.after, error, min(one.freedom, other.freedom))


@dataclass(frozen=True)
class Differences:
    """rows: what was found first, then most different first. work_s: for each side, all its recordings together."""

    rows: tuple[Difference, ...]
    work_s: tuple[float, float]
    run_counts: tuple[int, int]
    is_per_run: bool
    stuck_threads: int
    left_out: int

    @property
    def tested(self) -> list[tuple[Difference, Change]]:
        """Those that take time enough."""
        return [(row, change) for row in self.rows for change in row.changes if change.needed < math.inf]


def differences(before: Sequence[Slices], after: Sequence[Slices], is_per_run: bool = False) -> Differences:
    """Of two sides, each of one or more recordings."""
    recordings = [*before, *after]
    keys, times = _in_one_order(recordings)
    # A sample more or less at either end.
    least = np.zeros((2, 2))
    least[0] = max(each.period_ns for each in recordings) / math.sqrt(6)
    groups = range(len(before)), range(len(before), len(recordings))
    spread = _WHOLE_RUN_SPREAD if is_per_run else _RUN_SPREAD
    sides = [
        mean([times[each] for each in group], [recordings[each].work_ns for each in group], least, spread, is_per_run)
        for group in groups
    ]
    if is_per_run:
        sides = [replace(side, value=side.value / 1e9, variance=side.variance / 1e18) for side in sides]
    work_s = [sum(float(recordings[each].work_ns.sum()) for each in group) / 1e9 for group in groups]
    found = compared(keys, sides, work_s, (len(before), len(after)), is_per_run)
    stuck, left_out = (sum(getattr(each, name) for each in recordings) for name in ("stuck_threads", "left_out"))
    return replace(found, stuck_threads=stuck, left_out=left_out)


def compared(
    keys: Sequence[Key],
    sides: Sequence[Mean],
    work_s: Sequence[float],
    run_counts: tuple[int, int],
    is_per_run: bool = False,
) -> Differences:
    """Of the means of both sides: (keys, CPU or waits, own or total)."""
    units = [work / count if is_per_run else 1.0 for work, count in zip(work_s, run_counts)]
    between = difference(*sides)
    columns = [part.reshape(-1, 4).tolist() for part in (sides[0].value, sides[1].value)]
    columns += [part.reshape(-1, 4).tolist() for part in (np.sqrt(between.variance), between.freedom)]
    changes = [[Change(*values) for values in zip(*of_key)] for of_key in zip(*columns)]
    _find(changes, units, is_per_run)
    rows = [Difference(key, *of_key) for key, of_key in zip(keys, changes)]
    rows.sort(key=_rank)
    return Differences(tuple(rows), (work_s[0], work_s[1]), run_counts, is_per_run, 0, 0)


def _find(changes: list[list[Change]], units: Sequence[float], is_per_run: bool) -> None:
    """Marks what is beyond noise, of own times, by Holm's method.

    Of a second, what one takes more the others take less: what is found is left out of the seconds that the others
    share. So of all that is unlikely enough comes first what leaves the others least changed.
    """
    tested = {
        (key, column): changes[key][column]
        for key in range(len(changes))
        for column in _TESTED
        if any(
            time >= LEAST_SHARE * unit
            for time, unit in zip((changes[key][column].before, changes[key][column].after), units)
        )
    }
    limit = FALSE_ALARMS / max(1, len(tested))
    for place, change in tested.items():
        tested[place] = replace(change, needed=change.error * errors_of_chance(limit, change.freedom))
    before, after = units
    done: dict[tuple[int, int], Change] = {}
    while tested:
        unlikely = [place for place, change in tested.items() if change.chance <= FALSE_ALARMS / len(tested)]
        if not unlikely:
            break
        rests = {place: _without(tested, place, (before, after), is_per_run) for place in unlikely}
        changed = {place: sum(change.errors**2 for change in rests[place].values()) for place in unlikely}
        first = min(unlikely, key=lambda place: changed[place] - _IN_DOUBT * (tested[place].errors > 0))
        done[first] = replace(tested[first], is_found=True)
        before, after = before - tested[first].before, after - tested[first].after
        tested = rests[first]
    for (key, column), change in {**tested, **done}.items():
        changes[key][column] = change


def _without(
    tested: dict[tuple[int, int], Change], place: tuple[int, int], units: tuple[float, float], is_per_run: bool
) -> dict[tuple[int, int], Change]:
    """The others, as they are in the seconds that this one leaves to them."""
    before, after = units[0] - tested[place].before, units[1] - tested[place].after
    others = {other: change for other, change in tested.items() if other != place}
    if is_per_run or min(before, after) < LEAST_SHARE:
        return others
    return {other: replace(change, left=change.after * (1 - before / after)) for other, change in others.items()}


def _rank(row: Difference) -> tuple[bool, float]:
    found = [abs(change.difference) for change in row.changes if change.is_found]
    return not found, -max(found or [abs(change.difference) for change in row.changes])


def _in_one_order(recordings: Sequence[Slices]) -> tuple[list[Key], list[Floats]]:
    """(all keys, of each recording its times in their order)."""
    numbers: dict[Key, int] = {}
    places = []
    for each in recordings:
        renamed = same_files({file for _, file, _ in numbers}, {file for _, file, _ in each.keys})
        keys = [(name, renamed.get(file, file), line) for name, file, line in each.keys]
        places.append([numbers.setdefault(key, len(numbers)) for key in keys])
    times = [np.zeros((len(numbers), 2, 2, SLICE_COUNT)) for _ in recordings]
    for ordered, place, each in zip(times, places, recordings):
        np.add.at(ordered, place, each.times)
    return list(numbers), times


def same_files(known: set[str], files: set[str]) -> dict[str, str]:
    """New file -> the known one that it stands for: one is a copy of the other in another folder.

    Of files that are in only one of the two, each goes with the one that has the longest tail in common with it.
    """
    here: dict[tuple[str, ...], list[str]] = {}
    for path in known - files:
        parts = tuple(path.split("/")[::-1])
        for depth in range(1, len(parts)):
            here.setdefault(parts[:depth], []).append(path)
    renamed: dict[str, str] = {}
    taken: set[str] = set()
    for path in sorted(files - known):
        parts = tuple(path.split("/")[::-1])
        found = next((here[parts[:depth]] for depth in range(len(parts), 0, -1) if parts[:depth] in here), [])
        if len(found) == 1 and found[0] not in taken:
            renamed[path] = found[0]
            taken.add(found[0])
    return renamed
