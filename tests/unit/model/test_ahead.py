"""Items that another thread makes are the same, in their order, and so is what goes wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from bpfprof.model.ahead import LastMade, ahead, side_by_side


def test_one_is_made_while_the_one_before_it_is_used() -> None:
    is_begun = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        is_begun.set()
        yield 2
        yield 3

    found, before = ahead(items()), sys.getswitchinterval()
    assert next(found) == 1
    assert is_begun.wait(60)
    assert [*found] == [2, 3]
    assert sys.getswitchinterval() == before
    assert [*ahead(iter([]))] == []


def test_what_went_wrong_comes_where_its_item_would() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="no second one"):
        next(found)


def test_who_takes_no_more_ends_it() -> None:
    before, found = set(threading.enumerate()), ahead(iter(range(10)))  # those of other tests may end meanwhile
    assert next(found) == 0
    found.close()
    assert set(threading.enumerate()) <= before


def test_two_are_made_at_a_time_and_come_in_their_order() -> None:
    meet = threading.Barrier(2, timeout=60)

    def make(item: int) -> int:
        if item < 2:
            meet.wait()  # breaks where the other is not made meanwhile
        return item * item

    before = sys.getswitchinterval()
    assert [*side_by_side(make, range(50))] == [item * item for item in range(50)]
    assert sys.getswitchinterval() == before
    assert [*side_by_side(make, iter([]))] == []


def test_few_items_need_no_thread() -> None:
    main = threading.get_ident()
    assert {*side_by_side(lambda _: threading.get_ident(), range(3), False)} == {main}
    assert main not in {*side_by_side(lambda _: threading.get_ident(), range(3))}


def test_of_many_items_a_few_are_made_before_they_are_used() -> None:
    made: list[int] = []
    found = side_by_side(lambda item: made.append(item) or item, range(100))
    assert next(found) == 0
    assert len(made) <= 3
    found.close()
    assert len(made) <= 3


def test_what_went_wrong_side_by_side_comes_in_its_place() -> None:
    found = side_by_side(lambda item: 6 // item, [3, 2, 0, 1])
    assert [next(found), next(found)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_what_was_made_last_is_made_once() -> None:
    made: list[int] = []

    def make(item: int) -> int:
        made.append(item)
        return -item

    last = LastMade[int, int]()
    assert [last.of(item, make) for item in (1, 1, 2, 1)] == [-1, -1, -2, -1]
    assert made == [1, 2, 1]
    other = threading.Thread(target=last.of, args=(1, make))
    other.start()
    other.join()
    assert made == [1, 2, 1], "another thread has the same"
    assert last.of(2, make) == -2 and last.of(1, make) == -1 and made == [1, 2, 1, 2, 1], "it has ended, and has none"


def test_who_needs_what_another_makes_waits_for_it() -> None:
    last, asks, made = LastMade[int, int](), threading.Barrier(2), list[int]()

    def make(item: int) -> int:
        asks.wait()  # until the other one asks, too, or is about to
        made.append(item)
        return item

    def ask() -> None:
        if begins.acquire(blocking=False):
            assert last.of(3, make) == 3
        else:
            asks.wait()
            assert last.of(3, make) == 3

    begins = threading.Lock()
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [3]


def test_what_could_not_be_made_is_made_anew() -> None:
    last = LastMade[int, float]()
    assert last.of(2, lambda item: 1 / item) == 0.5
    with pytest.raises(ZeroDivisionError):
        last.of(0, lambda item: 1 / item)
    assert last.of(0, float) == 0.0
