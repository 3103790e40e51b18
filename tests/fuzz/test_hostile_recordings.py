"""Strangers' recordings that cost more than their size should: memory, time, and what reaches the terminal."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.hostile.cost import MEMORY_BYTES, cost_of, cost_of_call
from tests.hostile.recordings import ATTACKS
from tests.unit.recording.hand_made import file_bytes

# CPU time, which others on the machine make longer by caches and clock only. Each takes a quarter of it at most,
# and one that grows with the square 10 to 100 times as much.
CPU_S = 8
SIZE = 300
LARGE = {"gil_of_many_holders": 3000, "one_lock_of_all": 1000, "waits_in_different_calls": 3000}
# Each attack is read in one of these ways, and in that which made most of it.
WAYS = ("report", "report -f json", "report -f tree", "report -f collapsed", "report -f waits", "offcpu --by task")
WORST = {
    "names_of_one_address_at_many_times": "report -f collapsed",
    "functions_inlined_into_each_other": "report -f json",
    "a_long_name_of_many_addresses": "report -f flamegraph -o -",
    "a_long_name_of_many_frames": "report -f collapsed",
    "a_long_file_name_of_many_lines": "report -f collapsed",
    "long_names_of_threads_and_processes": "report --details",
    "deep_stacks": "report -f collapsed",
    "threads_of_an_index_each": "offcpu -f json",
    "threads_of_a_process_of_a_long_name": "report -f json",
    "samples_of_a_time_each": "report",
    "one_lock_of_all": "report -f json",
    "gil_of_many_holders": "offcpu --waker -f collapsed",
    "many_locks": "report --by lock",
    "rows_near_the_end_of_time": "report",
    "calls_of_many_functions": "report --by call -f json",
}
CASES = [(name, WORST.get(name, way)) for name, way in zip(ATTACKS, itertools.cycle(WAYS))]


def check(path: Path, way: str) -> None:
    verb, *options = way.split()
    cost = cost_of(verb, path, *options, cpu_s=CPU_S)
    print(f"{way}: exit {cost.code}, {cost.cpu_s:.1f} s, {cost.peak_bytes >> 20} MiB, file {path.stat().st_size} B")
    assert not cost.complaints(path.stat().st_size, CPU_S)


@pytest.mark.parametrize("name, way", CASES, ids=[name for name, _ in CASES])
def test_what_a_recording_costs(name: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / "x.hostile"
    path.write_bytes(file_bytes(ATTACKS[name](LARGE.get(name, SIZE))))
    check(path, way)


def test_two_strangers_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "x.hostile"
    path.write_bytes(file_bytes(ATTACKS["many_locks"](SIZE)))
    cost = cost_of("diff", path, path, cpu_s=CPU_S)
    assert not cost.complaints(2 * path.stat().st_size, CPU_S)


def test_the_measure_sees_what_it_should(tmp_path: Path) -> None:
    """Memory, time, an error and an escape."""

    def much_memory() -> None:
        print(len(bytearray(b"x") * (MEMORY_BYTES + (64 << 20))))

    assert "MiB of memory" in cost_of_call(much_memory).complaints(0, CPU_S)[0]

    def error() -> None:
        raise ValueError("wrong")

    assert "wrong" in cost_of_call(error).complaints(0, CPU_S)[0]
    assert "terminal" in cost_of_call(lambda: print("\x1b]0;x\x07")).complaints(0, CPU_S)[0]

    def for_ever() -> None:
        while True:
            pass

    assert any("CPU time" in said for said in cost_of_call(for_ever, 0.1).complaints(0, 0.1))
