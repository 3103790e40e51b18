"""At which instructions a frame is in the body of a `with`, against what the programs themselves say."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from bpfprof.cpython.layouts_dynamic import _DESCRIBED
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.with_bodies import kept_depths, read_table
from tests.integration.recorded import INTERPRETERS, program


@pytest.mark.parametrize("name", INTERPRETERS)
def test_entered_is_what_has_been_entered_and_not_left(name: str) -> None:
    command = [INTERPRETERS[name], program("with_samples.py")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    minor = int(name.rpartition(".")[2])
    called = 0
    for sample in map(json.loads, lines):
        code, table = bytes.fromhex(sample["code"]), read_table(bytes.fromhex(sample["table"]))

        def found(offset: str, code: bytes = code, table: list[tuple[int, int, int, int]] = table) -> int:
            def is_with(unit: int) -> bool:
                layout = STATIC_LAYOUTS.get((3, minor)) or _DESCRIBED[3, minor][0]
                return code[2 * unit + 2] == layout.with_handler

            depths = kept_depths(table, int(offset) // 2, is_with)
            assert depths == sorted(set(depths), reverse=True), "the inner ones are kept above the outer ones"
            return len(depths)

        assert {it: count for it, count in sample["calls"].items() if found(it) != count} == {}, sample["name"]
        assert {it: count for it, count in sample["offsets"].items() if found(it) > count} == {}, sample["name"]
        assert len(sample["offsets"]) >= 15
        called += len(sample["calls"])
    assert called > 35 and len(lines) == 10


def test_a_damaged_table_ends() -> None:
    rng = random.Random(1)
    for _ in range(300):
        table = read_table(rng.randbytes(rng.randrange(200)))
        assert len(kept_depths(table, rng.randrange(100), lambda _: True)) <= 128
    assert kept_depths([(0, 9, 3, 1)], 1, lambda _: True) == [1], "a handler that goes on in itself"
