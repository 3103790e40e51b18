from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

from bpfprof.cpython.line_tables import LineTable, _decode_large_locations, _decode_locations
from tests.unit.measured import least_cpu_s


def _entry(code: int, units: int, rest: bytes = b"") -> bytes:
    return bytes([0x80 | code << 3 | units - 1]) + rest


def _lines(version: tuple[int, int], table: bytes, first_line: int, size: int) -> list[int]:
    decoded = LineTable.decode(version, table, first_line)
    return [decoded.line(offset) for offset in range(0, size, 2)]


def test_an_entry_without_location_keeps_the_accumulator() -> None:
    table = _entry(15, 1) + _entry(11, 2, b"\0\5") + _entry(15, 1) + _entry(13, 1, b"\x03") + _entry(0, 1, b"\0")
    assert _lines((3, 11), table, 10, 14) == [0, 11, 11, 0, 10, 10, 0]


def test_long_forms_and_varints() -> None:
    # +100 is 200 as a signed varint: 0b000011_001000; a long entry goes on with end line and two columns.
    table = _entry(14, 1, bytes([0x48, 3, 0, 1, 2])) + _entry(12, 8, b"\0\0")
    assert _lines((3, 13), table, 1, 20) == [101] + [103] * 8 + [0]


def test_linetable_of_3_10() -> None:
    table = bytes([4, 1, 2, 0x80, 0, 5, 6, 0xFF])  # 4 bytes +1, 2 bytes no line, an empty range +5, 6 bytes -1
    assert _lines((3, 10), table, 10, 14) == [11, 11, 0, 15, 15, 15, 0]


def test_lnotab_before_3_10() -> None:
    table = bytes([4, 1, 0, 5, 2, 0xFE])
    assert _lines((3, 9), table, 10, 10) == [10, 10, 16, 14, 14]


def test_offsets_before_the_first_instruction() -> None:
    table = LineTable.decode((3, 11), _entry(11, 1, b"\0\0"), 7)
    assert [table.line(offset) for offset in (-2, -1, 0, 2, -3, -(2**40), 2**40)] == [7, 7, 8, 0, 0, 0, 0]


def test_the_line_to_show() -> None:
    table = LineTable.decode((3, 12), _entry(15, 1) + _entry(12, 1, b"\0\0") + _entry(15, 1), 7)
    assert [table.nearest_line(offset) for offset in (-2, 0, 2, 4, 100)] == [7, 7, 9, 9, 9]


@pytest.mark.parametrize("version", [(3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13)])
def test_damaged_tables_end_early(version: tuple[int, int]) -> None:
    rng = random.Random(version[1])
    tables = [b"", b"\0", b"\xff", b"\x80", bytes(1000), b"\xff" * 1000, b"\xe8" + b"\x7f" * 100, b"\x7f" * 100]
    tables += [rng.randbytes(rng.randrange(200)) for _ in range(300)]
    for table in tables:
        decoded = LineTable.decode(version, table, rng.choice((0, 1, 2**31 - 1)))
        assert all(0 <= decoded.line(offset) < 2**31 for offset in range(-10, 500))
        assert (np.diff(decoded.starts) >= 0).all()
        decoded.nearest_line(40)


def test_a_varint_that_is_cut_ends_the_table() -> None:
    good = _entry(11, 1, b"\0\0")
    assert _lines((3, 11), good + _entry(13, 1, b"\x40") + good, 1, 6) == [2, 0, 0]
    assert _lines((3, 11), good + _entry(13, 1), 1, 4) == [2, 0]


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="line tables as they are from 3.11 on")
def test_it_agrees_with_this_interpreter() -> None:
    import argparse
    import asyncio.base_events
    import inspect

    for module in (argparse, asyncio.base_events, inspect):
        source = inspect.getsource(module)
        for code in _code_objects(compile(source, "module.py", "exec")):
            table = LineTable.decode(sys.version_info[:2], code.co_linetable, code.co_firstlineno)
            for start, end, line in code.co_lines():
                assert {table.line(offset) for offset in range(start, end, 2)} <= {line or 0}


def test_large_tables_are_decoded_as_small_ones_are() -> None:
    """Those of functions that there are, and tables that are cut or made of any entries."""
    tables, made = [b"", b"\xf0", b"\xe8\x01\xf0", b"\xe8\x7f\x7f\x7f\x7f\x7f\x7f\x7f", b"\xff" * 99], random.Random(7)
    for _ in range(300):
        entries = []
        for _ in range(made.randrange(30)):
            code = made.randrange(16)
            size = 1 if code <= 9 else 2 if code <= 12 else made.randrange(1, 5) if code <= 14 else 0
            entries.append(bytes([0x80 | code << 3 | made.randrange(8), *made.choices(range(128), k=size)]))
        table = b"".join(entries)
        tables += [table, table[: len(table) // 2]]
    for table in tables:
        for first_line in (1, 100_000, (1 << 31) - 2):
            small, large = _decode_locations(table, first_line), _decode_large_locations(table, first_line)
            assert [each.tolist() for each in small] == [each.tolist() for each in large], table


def test_a_large_table_is_decoded_at_once() -> None:
    table = b"\xd8\x01\x01" * 5000  # each on the next line
    decoded = LineTable.decode((3, 12), table, 10)
    assert (decoded.line(0), decoded.line(2 * 4999), decoded.line(2 * 5000)) == (11, 5010, 0)
    assert len(decoded.starts) == 5001


@pytest.mark.second_tier
def test_a_table_of_a_megabyte_takes_some_tens_of_milliseconds() -> None:
    """An instruction at a time it took 1.5 s, and 11.8 s for a recording with eight."""
    table = b"\xd8\x01\x01" * (1 << 20)
    assert least_cpu_s(lambda: LineTable.decode((3, 12), table, 10), 0.5) < 0.5
