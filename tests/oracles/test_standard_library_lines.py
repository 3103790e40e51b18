"""Line tables against CPython's own answer, for every code unit of every interpreter's standard library.

Of every third file, unless `make test INTERPRETERS=all` asks for all.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpfprof.cpython.line_tables import LineTable
from tests.integration.interpreters import PYTHONS, minor
from tests.integration.recorded import ASKS_ALL

WITH_LINE_TABLES = [name for name in PYTHONS if (3, 6) <= minor(name) <= (3, 15)]

ONE_IN = 1 if ASKS_ALL else 3

# Run by each interpreter: for every code object of its standard library, as little-endian 32-bit words:
# first line, length of the table, length of the code in units, one line per unit (0: none); then the table's bytes.
DUMP = r"""
import array, ctypes, importlib.util, marshal, os, sys, sysconfig, types, zlib

out = open(sys.argv[1], "wb")
one_in = int(sys.argv[2])
stdlib = sysconfig.get_paths()["stdlib"]
tab = "co_linetable" if sys.version_info >= (3, 10) else "co_lnotab"
addr2line = ctypes.pythonapi.PyCode_Addr2Line
addr2line.argtypes = [ctypes.py_object, ctypes.c_int]


def lines_of(code):
    units = len(code.co_code) // 2
    if sys.version_info < (3, 10):
        return array.array("i", [addr2line(code, 2 * unit) for unit in range(units)])
    lines = array.array("i", [0]) * units
    for start, end, line in code.co_lines():
        if line:
            lines[start // 2 : end // 2] = array.array("i", [line]) * (end // 2 - start // 2)
    return lines


def dump(code):
    table, lines = getattr(code, tab), lines_of(code)
    out.write(array.array("i", [code.co_firstlineno, len(table), len(lines)]).tobytes())
    out.write(lines.tobytes())
    out.write(table)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            dump(constant)


def load(path):
    cached = importlib.util.cache_from_source(path)
    try:
        with open(cached, "rb") as file:
            data = file.read()
        if data[:4] == importlib.util.MAGIC_NUMBER:
            return marshal.loads(data[16 if sys.version_info >= (3, 7) else 12 :])  # PEP 552
    except OSError:
        pass
    try:
        with open(path, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError):
        return None


import warnings

warnings.simplefilter("ignore")
for root, folders, files in os.walk(stdlib):
    folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages", "__pycache__")]
    for name in files:
        if name.endswith(".py") and zlib.crc32(name.encode()) % one_in == 0:
            code = load(os.path.join(root, name))
            if code is not None:
                dump(code)
out.close()
"""


def _check_lines(name: str, folder: Path) -> tuple[int, int, int]:
    """(code objects, positions, wrong positions)."""
    dump = folder / f"{name}.lines"
    subprocess.run([PYTHONS[name], "-I", "-S", "-c", DUMP, str(dump), str(ONE_IN)], check=True)
    data = dump.read_bytes()
    dump.unlink()
    version = minor(name)
    position = code_count = unit_count = wrong_count = 0
    while position < len(data):
        first_line, table_bytes, units = np.frombuffer(data, "<i4", 3, position).tolist()
        expected = np.frombuffer(data, "<i4", units, position + 12)
        position += 12 + 4 * units
        table = LineTable.decode(version, data[position : position + table_bytes], first_line)
        bounds = np.minimum(np.append(table.starts, 2 * units), 2 * units)
        wrong_count += int((np.repeat(table.entry_lines, np.diff(bounds) // 2) != expected).sum())
        position += table_bytes
        code_count += 1
        unit_count += units
    return code_count, unit_count, wrong_count


@pytest.mark.second_tier
@pytest.mark.skipif(not WITH_LINE_TABLES, reason="no CPython 3.6 to 3.15 under ~/.pyenv/versions or /usr/bin")
def test_lines_of_the_whole_standard_library(tmp_path: Path, record_property: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        checked = dict(zip(WITH_LINE_TABLES, pool.map(_check_lines, WITH_LINE_TABLES, [tmp_path] * 99)))
    for name, (code_count, unit_count, wrong_count) in checked.items():
        record_property(name, f"{code_count} code objects, {unit_count} positions, {wrong_count} wrong")
        print(f"{name}: {code_count} code objects, {unit_count} positions, {wrong_count} wrong")
        assert code_count > 1000
    assert {name: counts[2] for name, counts in checked.items()} == dict.fromkeys(checked, 0)
