"""What differs between recordings, and what of it is told from noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof.query.compare.differences import Differences, differences
from bpfprof.query.compare.slices import SLICE_COUNT, Key, Slices

F, G, H = (("f", "/srv/app/a.py", 0), ("g", "/srv/app/a.py", 0), ("h", "/srv/app/b.py", 0))


def run(
    seed: int, slower: float = 1.0, waits: float = 0.0, seconds: float = 64.0, keys: Sequence[Key] = (F, G, H)
) -> Slices:
    """f takes 30% of the CPU time, with noise of 3% in each slice."""
    generator = np.random.default_rng(seed)
    times = np.zeros((3, 2, 2, SLICE_COUNT))
    shares = np.array([0.3 * slower, 0.4, 0.3])[:, None] * generator.normal(1, 0.03, (3, SLICE_COUNT))
    times[:, 0] = (shares / shares.sum(axis=0))[:, None] * 1e9 * seconds / SLICE_COUNT
    times[1, 1] = waits * 1e9 * seconds / SLICE_COUNT * generator.normal(1, 0.03, SLICE_COUNT)
    work_ns = times[:, :, 0].sum(axis=(0, 1))
    return Slices(tuple(keys), times, work_ns, 1e7)


def found_names(found: Differences) -> dict[str, float]:
    return {row.key[0]: round(change.difference, 3) for row, change in found.tested if change.is_found}


def test_a_slower_function_is_found_and_comes_first() -> None:
    found = differences([run(1)], [run(2, slower=1.5)])
    assert found_names(found)["f"] > 0.08 and found.rows[0].key == F
    row = found.rows[0]
    assert row.both == replace(row.cpu, needed=math.inf, is_found=False, freedom=row.both.freedom)
    assert row.cpu.is_slower(20)
    assert not row.cpu.is_slower(40) and not found.rows[-1].cpu.is_slower(0)
    assert abs(row.cpu.before - 0.3) < 0.01 and row.cpu.needed < row.cpu.difference


def test_runs_of_the_same_do_not_differ() -> None:
    alarms = [bool(found_names(differences([run(2 * seed)], [run(2 * seed + 1)]))) for seed in range(100)]
    assert sum(alarms) <= 4


def test_others_are_not_slower_because_one_is_faster() -> None:
    """And the other way round, although they have another part of each second."""
    for slower in (0.5, 2.0):
        found = differences([run(1)], [run(2, slower=slower)])
        assert set(found_names(found)) == {"f"}
        cpu = {row.key[0]: row.cpu for row in found.rows}
        assert abs(cpu["g"].percent(cpu["g"].difference)) > 15
        assert [name for name in "fgh" if cpu[name].is_slower(5)] == ["f"] * (slower > 1)
        assert [name for name in "fgh" if cpu[name].is_left] == ["g", "h"], "their shares differ, and it is said why"


def test_waits_are_told_apart_from_cpu_time() -> None:
    found = differences([run(1, waits=0.2)], [run(2, waits=0.4)])
    assert [(row.key[0], change is row.wait) for row, change in found.tested if change.is_found] == [("g", True)]
    waits = {row.key[0]: row.wait for row in found.rows}
    assert waits["g"].is_found and waits["g"].is_slower(50) and not waits["f"].is_found


def test_the_length_of_a_run_matters_for_whole_runs_alone() -> None:
    short, long = ([run(seed, seconds=seconds) for seed in range(3)] for seconds in (64, 80))
    assert not found_names(differences(short, long))
    found = differences(short, long, is_per_run=True)
    assert set(found_names(found)) == {"f", "g", "h"} and found.work_s[1] > 239.9
    assert abs(sum(row.both.after for row in found.rows) - 80) < 0.01
    assert not found_names(differences(short[:1], long[:1], is_per_run=True)), "the machine may have been slower"


def test_more_recordings_tell_smaller_differences() -> None:
    one = differences([run(1)], [run(2)])
    four = differences([run(seed) for seed in range(4)], [run(seed) for seed in range(4, 8)])
    needed = [next(row.cpu.needed for row in found.rows if row.key == F) for found in (one, four)]
    assert needed[1] < needed[0] and four.run_counts == (4, 4)


def test_what_is_new_or_gone() -> None:
    other = (F, G, ("new", "/srv/app/b.py", 0))
    found = {row.key[0]: row.cpu for row in differences([run(1)], [run(2, keys=other)]).rows}
    assert found["new"].is_found and found["new"].percent(found["new"].difference) == math.inf
    assert found["new"].is_slower(1000) and found["h"].is_found and found["h"].after == 0


def test_functions_are_the_same_in_another_folder_or_version() -> None:
    moved = [("f", "/home/ci/app/a.py", 0), ("g", "/home/ci/app/a.py", 0), ("h", "/home/ci/app/b.py", 0)]
    assert {row.key for row in differences([run(1)], [run(2, keys=moved)]).rows} == {F, G, H}
    ambiguous = [("f", "/x/a.py", 0), ("g", "/y/a.py", 0), ("h", "/srv/app/b.py", 0)]
    found = differences([run(1)], [run(2, keys=ambiguous)])
    assert len({row.key for row in found.rows}) == 4, "one file stands for one other"


def test_what_takes_no_time_is_not_tested() -> None:
    before, after = run(1), run(2, slower=1.5)
    for each, factor in ((before, 0.01), (after, 0.02)):
        each.times[2] *= factor
    assert not any(row.key == H for row, _ in differences([before], [after]).tested)
    nothing = Slices((), np.zeros((0, 2, 2, SLICE_COUNT)), np.zeros(SLICE_COUNT), 1e7)
    assert differences([nothing], [nothing]).rows == ()
