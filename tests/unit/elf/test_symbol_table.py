from __future__ import annotations

import numpy as np
import pytest

from bpfprof.elf.symbols.table import LOCAL, SYMBOL_DTYPE, UNSIZED, UNTYPED, SymbolTable


def names_at(symbols: list[tuple[int, int, str, int]], addresses: list[int]) -> list[str]:
    """Names at addresses of hand-made symbols (start, end, name, rank)."""
    rows = np.zeros(len(symbols), SYMBOL_DTYPE)
    text = b""
    for row, (start, end, name, rank) in zip(rows, symbols):
        row["start"], row["end"], row["name"], row["rank"] = start, end, len(text), rank
        text += name.encode() + b"\0"
    table = SymbolTable(rows, (lambda offset, size: text[offset : offset + size],), has_versions=True)
    return table.names(table.find(np.array(addresses, np.uint64)))


def test_an_address_behind_a_function_belongs_to_none() -> None:
    assert names_at([(10, 20, "f", 0), (30, 40, "g", 0)], [9, 10, 19, 20, 29, 30, 39, 40]) == [
        *("", "f", "f", "", "", "g", "g", ""),
    ]


def test_the_outer_function_goes_on_behind_the_inner_one() -> None:
    symbols = [(10, 90, "outer", 0), (30, 40, "inner", 0), (50, 50, "label", UNSIZED | LOCAL | UNTYPED)]
    assert names_at(symbols, [20, 35, 40, 55, 89, 90]) == ["outer", "inner", "outer", "outer", "outer", ""]


def test_a_function_without_a_size_reaches_to_the_next_or_its_limit() -> None:
    symbols = [(10, 100, "a", UNSIZED), (20, 30, "b", 0), (40, 100, "c", UNSIZED)]
    assert names_at(symbols, [15, 25, 35, 50, 99, 100]) == ["a", "b", "", "c", "c", ""]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (("_x", 0), ("a", UNTYPED)),
        (("_x", 0), ("a", LOCAL)),
        (("_x", 0), ("a", UNSIZED)),
        (("read_long", 0), ("_read", 0)),
        (("_read", 0), ("__read", 0)),
        (("memcpy_long", 0), ("memcpy@V1", 0)),
        (("aa", 0), ("aaa", 0)),
        (("aa", 0), ("ab", 0)),
    ],
)
def test_which_of_two_names_is_shown(better: tuple[str, int], worse: tuple[str, int]) -> None:
    for order in ((better, worse), (worse, better)):
        assert names_at([(16, 32, *pair) for pair in order], [16]) == [better[0]]


def test_no_symbols_and_no_addresses() -> None:
    assert names_at([], [1, 2]) == ["", ""]
    assert names_at([(1, 2, "a", 0)], []) == []
    assert names_at([(2**64 - 4, 2**64 - 1, "a", 0)], [2**64 - 4, 2**64 - 1, 0]) == ["a", "", ""]
