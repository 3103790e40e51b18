"""Items that another thread makes are the same, in their order, and so is what goes wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from bpfprof.model.ahead import ahead


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
