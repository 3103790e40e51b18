from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.model.ids import Pid
from bpfprof.names.perf_map import PerfMaps, parse_perf_map
from bpfprof.names.symbols import SymbolNames, demangle
from tests.unit.measured import least_cpu_s


def names(table: SymbolTable, *addresses: int) -> list[str]:
    return SymbolNames(table).resolve(np.array(addresses, np.uint64))


def test_lines() -> None:
    source = parse_perf_map(b"1000 10 py::f:/a b/@x.py\n0x2000 0x8 g\n3000 8 _Z1hv\nFFFFF000 f upper\n4000 1 last")
    assert names(source, 0xFFF, 0x1000, 0x100F, 0x1010) == ["", "py::f:/a b/@x.py", "py::f:/a b/@x.py", ""]
    assert names(source, 0x2007, 0x3000, 0xFFFFF00E, 0x4000) == ["g", demangle("_Z1hv"), "upper", "last"]


def test_malformed_lines_are_passed_over() -> None:
    lines = [b"", b"x", b"1000", b"1000 10", b"1000 10 ", b"g000 10 a", b"1000 0 a", b"10000000000000000 1 a", b" 1 a"]
    source = parse_perf_map(b"\n".join(lines) + b"\n5000 10 good\n")
    assert len(source) == 1
    assert names(source, 0x1000, 0x5001) == ["", "good"]


def test_a_later_line_replaces_an_earlier_one() -> None:
    assert names(parse_perf_map(b"1000 10 old\n1000 20 new\n"), 0x1000, 0x101F) == ["new", "new"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert names(parse_perf_map(b"1000 10 a\x1b[31m\xff\n"), 0x1000) == ["a\ufffd[31m\ufffd"]


def test_many_lines_at_once() -> None:
    rng = random.Random(1)
    starts = sorted(rng.sample(range(1 << 40, 1 << 41), 60000))
    extents = [(start, rng.randrange(1, 400)) for start in starts]
    data = b"".join(b"%x %x function_%d\n" % (start, size, i) for i, (start, size) in enumerate(extents))
    source = parse_perf_map(data)
    assert names(source, *starts) == [f"function_{i}" for i in range(len(starts))]


@pytest.mark.second_tier
@pytest.mark.parametrize("unit", [b"\n", b" ", b"1 1 a\n", b"x", b"1000 10 name\n", b"\0", b"1 \n"])
def test_the_largest_maps_cost_little(unit: bytes) -> None:
    data = unit * ((40 << 20) // len(unit))
    sources: list[SymbolTable] = []
    assert least_cpu_s(lambda: sources.append(parse_perf_map(data)), 1.5) < 1.5
    assert len(sources[-1]) <= 1


def test_damaged_maps() -> None:
    rng = random.Random(2)
    base = b"".join(b"%x %x name%d\n" % (i * 64, 32, i) for i in range(30))
    for _ in range(2000):
        data = bytearray(base)
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.choice(b"\n 0x\0\xffz-")
        names(parse_perf_map(bytes(data)), 0, 64, 2**64 - 1)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()


@pytest.fixture
def path(process: subprocess.Popen[bytes]) -> Iterator[Path]:
    path = Path(f"/tmp/perf-{process.pid}.map")
    yield path
    path.unlink(missing_ok=True)


def read(process: subprocess.Popen[bytes]) -> SymbolTable:
    return PerfMaps().names_of(Pid(process.pid)).table


def test_the_map_of_a_process(process: subprocess.Popen[bytes], path: Path) -> None:
    assert len(read(process)) == 0
    path.write_bytes(b"1000 10 f\n")
    assert names(read(process), 0x1001) == ["f"]


def test_one_file_of_many_processes_is_parsed_once_until_it_changes(
    process: subprocess.Popen[bytes], path: Path
) -> None:
    maps = PerfMaps()
    path.write_bytes(b"1000 10 f\n")
    known = maps.names_of(Pid(process.pid))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        link = Path(f"/tmp/perf-{other.pid}.map")
        link.hardlink_to(path)
        try:
            assert maps.names_of(Pid(other.pid)) is known
            path.write_bytes(b"1000 10 f\n2000 10 g\n")
            assert names(maps.names_of(Pid(other.pid)).table, 0x2001) == ["g"]
        finally:
            link.unlink()


def test_a_link_or_a_fifo_is_not_read(process: subprocess.Popen[bytes], path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"1000 10 f\n")
    path.symlink_to(tmp_path / "other")
    assert len(read(process)) == 0
    path.unlink()
    os.mkfifo(path)
    assert len(read(process)) == 0


def test_the_map_of_another_user(process: subprocess.Popen[bytes], path: Path) -> None:
    path.write_bytes(b"1000 10 f\n")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)
    assert len(read(process)) == 0


def test_a_process_that_is_gone(process: subprocess.Popen[bytes], path: Path) -> None:
    path.write_bytes(b"1000 10 f\n")
    process.kill()
    process.wait()
    assert len(read(process)) == 0


def test_the_pid_inside_its_namespace(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a pid namespace")
    script = (
        "import os; open(f'/tmp/perf-{os.getpid()}.map', 'x').write('1000 10 inside\\n'); print(flush=True); input()"
    )
    mount = 'mount -t tmpfs none /tmp && exec "$@"'
    # Not the interpreter of these tests: it may lie below /tmp.
    command = ["unshare", "-mpf", "sh", "-c", mount, "sh", "/usr/bin/python3", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None and outer.stdin is not None
        if not outer.stdout.readline():
            pytest.skip("no pid namespace here")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        source = PerfMaps().names_of(Pid(int(children[0]))).table
        outer.stdin.close()
    assert names(source, 0x1000) == ["inside"]
