"""Ranges of real interpreters, with their symbols and without, and of small files made for the purpose."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.cpython.eval_ranges import EvalRanges, eval_ranges
from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.table import SYMBOL_DTYPE, SymbolTable
from tests import pyenv

NO_SYMBOLS = SymbolTable(np.zeros(0, SYMBOL_DTYPE), [])
LIBRARIES = pyenv.paths("3.*/lib/libpython3.[0-9]*.so.1.0")

Ranges = list[tuple[int, int]]


def pairs(ranges: EvalRanges) -> Ranges:
    return list(zip(ranges.starts.tolist(), ranges.ends.tolist()))


def ranges_of_nm(path: Path) -> Ranges:
    listed = subprocess.run(["nm", "-S", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tT] _PyEval_EvalFrameDefault(?:\..*)?$", listed, re.M)
    return sorted({(int(start, 16), int(start, 16) + int(size, 16)) for start, size in found})


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_real_libraries_with_and_without_symbols(path: Path) -> None:
    """3.11 and 3.12 have a cold piece, reached through the table of labels only; the others have none."""
    expected = ranges_of_nm(path)
    assert expected
    with ElfImage.open(str(path)) as image:
        assert pairs(eval_ranges(image)) == expected
        assert pairs(eval_ranges(image, NO_SYMBOLS)) == expected


@pytest.mark.skipif(not Path("/usr/bin/python3.11").is_file(), reason="not there")
def test_stripped_program_of_a_distribution() -> None:
    """One piece more, or none where the build was not guided by a profile; it jumps back into the function."""
    with ElfImage.open("/usr/bin/python3.11") as image:
        function = image.find_symbol("_PyEval_EvalFrameDefault")
        if function is None:
            pytest.skip("libpython is shared here")
        frames = read_call_frames(image)
        ranges = eval_ranges(image, frames=frames)
        found = pairs(ranges)
        body = (function.address, function.address + function.size)
        assert body in found
        for start, end in set(found) - {body}:
            assert start in frames.function_starts and end in frames.function_ends
            code = image.read(start, end - start)
            assert code is not None
            places = [match.start() for match in re.finditer(rb"\xe9", code[:-4])]
            targets = [
                start + place + 5 + int.from_bytes(code[place + 1 : place + 5], "little", signed=True)
                for place in places
            ]
            assert sum(body[0] <= target < body[1] for target in targets) > len(places) / 2
        assert len(found) <= 2


SOURCE = """
#include <stdlib.h>
extern int puts(const char *);
__attribute__((noinline, noclone)) int other(int n) { return puts("other") + n; }
__attribute__((noinline, noclone, visibility("default"))) int _PyEval_EvalFrameDefault(int n, char **v) {
    volatile char room[200];
    static const void *const labels[] = {&&first, &&second, &&rare, &&last};
    room[n & 127] = 1;
    if (n == 77) { room[3] = n; abort(); }
    goto *labels[n & 3];
first: n = other(n) + room[0]; goto *labels[(n >> 2) & 3];
second: n = other(n + 1) * room[1]; goto *labels[(n >> 3) & 3];
rare: room[2] = n; abort();
last: return n + room[n & 63];
}
__attribute__((noinline)) int _TAIL_CALL_LOAD_FAST(int n) { return other(n) + 3; }
int main(int n, char **v) { return _PyEval_EvalFrameDefault(n, v) + _TAIL_CALL_LOAD_FAST(n); }
"""


@pytest.fixture(scope="module", params=["-no-pie", "-pie"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("strip") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("eval")
    (folder / "a.c").write_text(SOURCE)
    pic = "-fPIE" if request.param == "-pie" else "-fno-pie"
    command = ["gcc", "-O2", "-freorder-blocks-and-partition", pic, request.param, "-rdynamic", "-o"]
    subprocess.run([*command, str(folder / "a"), str(folder / "a.c")], check=True)
    subprocess.run(["strip", "-o", str(folder / "stripped"), str(folder / "a")], check=True)
    if ".cold" not in subprocess.run(["nm", folder / "a"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this gcc does not split functions")
    return folder / "a"


def test_pieces_of_a_program(program: Path) -> None:
    expected = ranges_of_nm(program)
    assert len(expected) == 2
    with ElfImage.open(str(program)) as image:
        handler = image.find_symbol("_TAIL_CALL_LOAD_FAST")
        assert handler is not None
        ranges = eval_ranges(image)
    handler_range = (handler.address, handler.address + handler.size)
    assert pairs(ranges) == sorted([*expected, handler_range])
    asked = np.array([edge for start, end in expected for edge in (start - 1, start, end - 1, end)], np.uint64)
    assert ranges.stands_for_run(asked).tolist() == [False, True, True, False] * 2
    assert ranges.contains(np.array(handler_range, np.uint64)).tolist() == [True, False]
    assert ranges.stands_for_run(np.array(handler_range, np.uint64)).tolist() == [False, False]


def test_pieces_of_a_stripped_program(program: Path) -> None:
    expected = set(ranges_of_nm(program))
    with ElfImage.open(str(program.with_name("stripped"))) as image:
        assert set(pairs(eval_ranges(image, NO_SYMBOLS))) == expected
        assert expected < set(pairs(eval_ranges(image)))  # -rdynamic keeps the handler
        frames = read_call_frames(image)
        none = np.zeros(0, np.uint64)
        empty = CallFrames(none, np.zeros(0, np.uint16), frames.rules, none, none, 0, {})
        assert set(pairs(eval_ranges(image, NO_SYMBOLS, empty))) < expected


def test_a_file_without_the_function() -> None:
    with ElfImage.open(shutil.which("true") or "/bin/true") as image:
        ranges = eval_ranges(image)
    assert not pairs(ranges)
    asked = np.array([0, 1 << 63], np.uint64)
    assert not ranges.contains(asked).any() and not ranges.stands_for_run(asked).any()


def test_damaged_files(program: Path, tmp_path: Path) -> None:
    """Any byte may be anything: no error but those of a file that cannot be opened at all."""
    content = program.with_name("stripped").read_bytes()
    rng = random.Random(20)
    opened = 0
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 4, 40, 400])):
            damaged[rng.randrange(64, len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(64, len(damaged)) :]
        path = tmp_path / "damaged"
        path.write_bytes(damaged)
        try:
            image = ElfImage.open(str(path))
        except ValueError:
            continue
        with image:
            ranges = eval_ranges(image, rng.choice([None, NO_SYMBOLS]))
        opened += 1
        assert (ranges.starts < ranges.ends).all() and (ranges.ends[:-1] <= ranges.starts[1:]).all()
    assert opened > 50
