"""Of more rows than a browser shows at once fewer are made, which lose nothing."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.model.grouping import group_numbers
from bpfprof.render.page_rows import PAGE_COLUMNS, Fewer, Rows, Told

DURATION_NS = 60_000_000_000
SUMS = ("gap", "duration", "weight", "count")
LOOKS = ("thread", "place", "kind", "flags")


def made(thread_count: int, per_thread: int, place_count: int, seed: int = 1) -> Rows:
    """Threads that wait in so many places, each at any time as much as at others; some pause in between."""
    rng = np.random.default_rng(seed)
    count = thread_count * per_thread
    rows: Rows = {name: np.zeros(count, dtype) for name, dtype in PAGE_COLUMNS.items() if name != "look"}
    rows |= {"thread": np.zeros(count, np.uint32), "place": np.zeros(count, np.uint32)}
    rows |= {"kind": np.zeros(count, np.uint8), "flags": np.zeros(count, np.uint8)}
    rows["thread"][:] = np.repeat(np.arange(thread_count), per_thread)
    rows["place"][:], rows["kind"][:] = rng.integers(0, place_count, count), rng.integers(0, 3, count)
    rows["count"][:] = 1
    lengths = rng.random((thread_count, per_thread)) + 0.01
    lengths[:, per_thread // 2] += 0.1 * per_thread  # much longer than any bucket
    lengths *= 0.99 * DURATION_NS / lengths.sum(axis=1, keepdims=True)
    rows["duration"][:] = rows["weight"][:] = lengths.astype(np.int64).ravel()
    rows["gap"][::1000] = 1_000_000
    for thread in range(thread_count):
        own = rows["thread"] == thread
        rows["start"][own] = np.cumsum((rows["gap"] + rows["duration"])[own]) - rows["duration"][own]
    return rows


def fewer(rows: Rows, budget: int, block: int) -> tuple[Rows, Fewer]:
    first, look = group_numbers([rows[name] for name in LOOKS])
    made = Fewer(DURATION_NS, Told(*(rows[name][first] for name in LOOKS)), budget)
    columns = {"look": look.astype(np.uint32)} | {name: rows[name] for name in rows.keys() - LOOKS}
    for at in range(0, len(look), block):
        made.add({name: column[at : at + block] for name, column in columns.items()})
    found, told = made.rows()
    return found | told._asdict(), made


def sums_by(rows: Rows, *names: str) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for key, *values in zip(zip(*(rows[name].tolist() for name in names)), *(rows[name].tolist() for name in SUMS[2:])):
        sums = found.setdefault(key, [0, 0])
        for place, value in enumerate(values):
            sums[place] += value
    return {key: sums for key, sums in found.items() if any(sums)}


@pytest.mark.parametrize("block", [1 << 20, 3_000])
@pytest.mark.parametrize(("place_count", "is_apart"), [(1, False), (2_000, True)])
def test_nothing_is_lost(place_count: int, is_apart: bool, block: int) -> None:
    rows = made(3, 40_000, place_count)
    found, how = fewer(rows, 40_000, block)
    assert how.is_apart == is_apart and how.bucket_ns and len(found["thread"]) <= 40_000
    for name in SUMS:
        assert found[name].sum() == rows[name].sum()
    assert sums_by(found, "thread", "kind", "place") == sums_by(rows, "thread", "kind", "place")
    assert (np.diff(found["thread"].astype(np.int64)) >= 0).all()


def at_each(rows: Rows, weigh: str, parts: int) -> npt.NDArray[np.float64]:
    """[thread, part of the time]: as the page draws it, each where the one before ends."""
    found = np.zeros((int(rows["thread"].max()) + 1, parts))
    for thread, own in enumerate(found):
        of = {name: column[rows["thread"] == thread] for name, column in rows.items()}
        start = np.cumsum(of["gap"] + of["duration"]) - of["duration"]
        middle = (start + of["duration"] // 2) * parts // DURATION_NS
        np.add.at(own, np.minimum(middle, parts - 1), of[weigh])
    return found


def test_where_time_and_stacks_are_apart_both_are_where_they_were() -> None:
    """The time to a bucket; of the stacks, which are anywhere by chance, a tenth of a thread's 10,000 within 10%."""
    rows = made(3, 40_000, 2_000)
    found, how = fewer(rows, 30_000, 5_000)
    shown, wanted = at_each(found, "duration", 10), at_each(rows, "duration", 10)
    assert abs(shown - wanted).max() <= 2 * how.bucket_ns
    assert abs(at_each(found, "weight", 10) - wanted).max() < 0.1 * wanted.max()
    takes_none = found["duration"] == 0
    assert (found["weight"][(found["duration"] > 0) & (found["duration"] <= how.bucket_ns)] == 0).all()
    assert takes_none.sum() > 10_000 and (found["weight"][takes_none] > 0).all()


def test_few_rows_stay_as_they_are() -> None:
    rows = made(2, 2_000, 500)
    found, how = fewer(rows, 10_000, 300)
    assert not how.bucket_ns
    assert all((found[name] == column).all() for name, column in rows.items())


def test_rows_that_have_little_alike_stay_where_they_can_be_held() -> None:
    rows = made(1, 3_000, 1 << 30)
    found, how = fewer(rows, 2_500, 1 << 20)
    assert not how.is_apart and not how.bucket_ns and len(found["thread"]) == 3_000
