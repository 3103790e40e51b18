"""Rows by thread and time, by columns, are the same in a file as in memory."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.account import sorted_rows as made
from bpfprof.account.columns import Columns
from bpfprof.account.threads import RowsByThread
from bpfprof.model.samples import WAIT_DTYPE

THREADS, COUNT = 30, 5_000


def rows(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Every byte at random, but threads, and times, which are often equal."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, count * WAIT_DTYPE.itemsize, np.uint8).view(WAIT_DTYPE)
    found["thread"], found["time_ns"] = rng.integers(0, THREADS, count), rng.integers(0, 50, count)
    found["thread"][found["thread"] == 7] = 8  # one has none
    return found


def last_of(threads: list[int]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = rows(len(threads), 2)
    found["thread"], found["time_ns"] = threads, 0
    return found


@pytest.mark.parametrize("part_bytes", [1, 20_000, 1 << 30])
def test_a_file_has_the_columns_that_memory_has(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, last = rows(COUNT, 1), last_of([0, 3, 29])
    in_memory = made.sorted_rows(given, last, THREADS)
    monkeypatch.setattr(made, "MOST_BYTES", 0)
    monkeypatch.setattr(made, "_PART_BYTES", part_bytes)
    in_file = made.sorted_rows(given, last, THREADS)
    assert type(in_file) is not type(in_memory)
    order = np.lexsort((np.append(given["time_ns"], [99] * 3), np.append(given["thread"], last["thread"])))
    expected = np.concatenate([given, last])[order]
    for held in (in_memory, in_file):
        assert held.begin.tolist() == np.searchsorted(expected["thread"], np.arange(THREADS + 1)).tolist()
        for begin, end in ((0, COUNT + 3), (0, 0), (17, 18), (100, 4_000), (COUNT, COUNT + 3)):
            for name in WAIT_DTYPE.names or ():
                assert (held.column(name, begin, end) == expected[name][begin:end]).all(), name


def test_columns_are_taken_once_and_by_their_places() -> None:
    given = rows(COUNT, 1)
    by_thread = RowsByThread(given, given[:0], THREADS)
    part = by_thread.rows(slice(100, 200))
    whole = by_thread.column("stack")
    assert len(part) == 100 and (part["stack"] == whole[100:200]).all()
    assert part["stack"] is part["stack"]
    with pytest.raises(ValueError, match="read-only"):
        part["stack"][0] = 1
    places = np.array([5, 3, 3, 99])
    assert (part.picked(places)["args"] == part["args"][places]).all()
    other = part.replaced({"stack": np.zeros(100, np.uint32)})
    assert not other["stack"].any() and (other["args"] == part["args"]).all() and part["stack"].any()
    assert (by_thread.column("stack", np.array([4_000, 7])) == whole[[4_000, 7]]).all()


def test_each_column_is_read_when_it_is_asked_for() -> None:
    asked: list[str] = []

    def take(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        asked.append(name)
        return np.arange(3)

    columns = Columns(3, take)
    assert not asked and columns["a"].tolist() == [0, 1, 2] and columns.picked(np.array([2]))["a"].tolist() == [2]
    assert asked == ["a"]
