"""Names of threads, read from every CPython there is, against what the program says; and from changing memory."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from bpfprof.cpython.layout import Layout
from bpfprof.cpython.layouts_dynamic import _DESCRIBED, _FREE_THREADED
from bpfprof.cpython.layouts_static import STATIC_LAYOUTS
from bpfprof.cpython.objects import Objects
from bpfprof.cpython.thread_names import ThreadNames
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import Memory, ProcessMemory
from tests import pyenv, sid
from tests.integration.recorded import running
from tests.tiers import by_version

PROGRAM = Path(__file__).parents[2] / "programs" / "named_threads.py"
VERSIONS = [(3, minor) for minor in range(6, 16)]
# imports.modules in PyInterpreterState, which the debug offsets tell: 3.13.0, 3.14.10, 3.15.2.
MODULES = {(3, 13): 7656, (3, 14): 7688, (3, 15): 7592}


def layout_of(version: tuple[int, int]) -> Layout:
    """Strings are as in 3.12 from then on."""
    if version in STATIC_LAYOUTS:
        return STATIC_LAYOUTS[version]
    keys = _DESCRIBED[version][0].type_cached_keys
    base = STATIC_LAYOUTS[3, 12]
    return replace(base, version=version, interpreter_modules=MODULES[version], type_cached_keys=keys)


def python_of(version: tuple[int, int]) -> str:
    number = ".".join(map(str, version))
    found = pyenv.paths(f"{number}.*/bin/python")
    found += [path for path in (Path(f"/usr/bin/python{number}"),) if path.exists()]
    found += [Path(path) for name, path in sid.pythons().items() if name == number]
    if not found:
        pytest.skip(f"no CPython {number}")
    return str(found[0])


@pytest.fixture(params=by_version(VERSIONS))
def target(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[tuple[int, int], subprocess.Popen[str], dict[str, object]]]:
    with running(python_of(request.param), str(PROGRAM)) as target:
        yield request.param, target.process, json.loads(target.first_line)


def test_names_are_those_of_the_program(
    target: tuple[tuple[int, int], subprocess.Popen[str], dict[str, object]],
) -> None:
    version, process, said = target
    given = cast(dict[str, str], said["names"])
    expected = {int(ident): name if len(name) <= 256 else name[:255] + "…" for ident, name in given.items()}
    with ProcessMemory(Pid(process.pid)) as memory:
        names = ThreadNames(memory, layout_of(version))
        interpreter = cast(int, said["interpreter"])
        assert names.read([interpreter]) == expected
        assert {"MainThread", "plain", "grün", "名前", "\N{SNAKE} snake", "other 1", "slotted", "renamed"} <= {
            *expected.values()
        }
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "renamed\n"
        later = names.forked(memory).read([interpreter])
        assert {ident for ident in later if later[ident] != expected[ident]} == {
            ident for ident, name in expected.items() if name == "to be renamed"
        }
        assert "was renamed" in later.values()
    assert names.read([interpreter]) == {}  # it is gone


class Changing(Memory):
    """The memory of a process in which some of what is read is anything."""

    def __init__(self, memory: ProcessMemory, seed: int) -> None:
        self._memory, self._random, self.read_count = memory, random.Random(seed), 0

    def read_up_to(self, address: int, size: int) -> bytes:
        self.read_count += 1
        data = bytearray(self._memory.read_up_to(address, size))
        if data and self._random.random() < 0.05:
            for _ in range(self._random.randrange(1, 9)):
                data[self._random.randrange(min(len(data), 64))] = self._random.choice(
                    (0, 1, 255, self._random.randrange(256))
                )
        return bytes(data)


@pytest.mark.second_tier
def test_memory_that_changes_is_a_miss(
    target: tuple[tuple[int, int], subprocess.Popen[str], dict[str, object]],
) -> None:
    version, process, said = target
    with ProcessMemory(Pid(process.pid)) as memory:
        for seed in range(60):
            changing = Changing(memory, seed)
            names = ThreadNames(cast(ProcessMemory, changing), layout_of(version))
            for _ in range(3):
                found = names.read([cast(int, said["interpreter"])])
                assert all(len(name) <= 256 for name in found.values())
            assert changing.read_count < 100_000


class Counting(Memory):
    """Counts how often it is asked: each time takes a tenth of a millisecond of two processes."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory, self.ask_count, self.each_count = memory, 0, 0

    def read_up_to(self, address: int, size: int) -> bytes:
        self.ask_count += 1
        return self._memory.read_up_to(address, size)

    def read_each(self, addresses: Sequence[int], size: int) -> list[bytes]:
        self.ask_count += 1
        self.each_count += len(addresses)
        return self._memory.read_each(addresses, size)


def test_names_of_modules_are_read_together(
    target: tuple[tuple[int, int], subprocess.Popen[str], dict[str, object]],
) -> None:
    version, process, said = target
    with ProcessMemory(Pid(process.pid)) as memory:
        counting = Counting(memory)
        names = ThreadNames(cast(ProcessMemory, counting), layout_of(version))
        assert names.process_name([cast(int, said["interpreter"])], 1000) == ""  # nothing has given it one
        assert counting.each_count > 30 and counting.ask_count < 20


class Addresses:
    """Memory in which each word is its own address."""

    def read(self, address: int, size: int) -> bytes:
        return struct.pack("<Q", address) * (size // 8)

    read_up_to = read


@pytest.mark.parametrize("known", [*_DESCRIBED.values(), *_FREE_THREADED.values()])
def test_the_keys_of_a_type_are_where_its_layout_has_them(known: tuple[Layout, dict[str, str]]) -> None:
    """Whatever the size of an object's header is: it is an offset in the whole type."""
    kind = Objects(Addresses(), known[0])._type(0x10000)
    assert kind.cached_keys == 0x10000 + known[0].type_cached_keys
