"""Pythons that are not read are named, by every way to record and to report, and lose nothing but Python frames."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.recorded import INTERPRETERS, Target, bpfprof, checked, collapsed, needs_root, program, running

PYPY = shutil.which("pypy3")
VERSION = re.compile(rb"(xdebugpy)..\x0d\x03\0{4}", re.DOTALL)  # after the cookie of _Py_DebugOffsets
PYPY_SENTENCE = r"PyPy \d+\.\d+\.\d+ is not CPython"

pytestmark = [
    needs_root,
    pytest.mark.skipif(PYPY is None, reason="no PyPy (apt-get install pypy3)"),
    pytest.mark.skipif("3.13" not in INTERPRETERS, reason="no CPython 3.13 under ~/.pyenv/versions"),
]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """known.py on a PyPy, and on a CPython that says of itself that it is 3.16."""
    folder, python = tmp_path_factory.mktemp("3.16"), INTERPRETERS["3.13"]
    (library,) = Path(python).resolve().parents[1].glob("lib/libpython3.13.so.1.0")
    content, count = VERSION.subn(rb"\1" + struct.pack("<Q", 0x031000F0), library.read_bytes())
    assert count == 1
    (folder / library.name).write_bytes(content)
    environment = {"LD_LIBRARY_PATH": str(folder)}
    with ExitStack() as stack:
        yield {
            "PyPy": stack.enter_context(running(str(PYPY), program("known.py"))),
            "3.16": stack.enter_context(running(python, program("known.py"), env=environment)),
        }


@pytest.mark.parametrize("way", ["-p", "-a"])
def test_named_where_they_run_already(targets: dict[str, Target], tmp_path: Path, way: str) -> None:
    path = tmp_path / "x.bpfprof"
    chosen = [it for target in targets.values() for it in ("-p", target.pid)] if way == "-p" else ["-a"]
    told = bpfprof("record", *chosen, "--details", "-d", 1, "-o", path)
    sentences = {"PyPy": PYPY_SENTENCE, "3.16": r"CPython 3\.16 is not supported yet"}
    folded = collapsed(path)
    for name, target in targets.items():
        who = rf"process \S+ \({target.pid}\): {sentences[name]}; its stacks have no Python frames"
        assert re.search(who, " ".join(told.stdout.split()))
        assert re.search(who, " ".join(bpfprof("report", path, "--details").stdout.split()))
        assert re.search(who, bpfprof("report", path, "-f", "collapsed").stderr)
        if way == "-p":
            assert re.search(rf"process {target.pid} \(\S+\): {sentences[name]}", told.stderr)
        stacks = folded.of_process(target.pid)
        assert not [line for line in stacks.lines if any(".py:" in frame for frame in line[2])]
        assert [line for line in stacks.lines if len(line[2]) > 3 and not line[2][0].startswith("[truncated")]
        assert stacks.total_us(kind="off") > 0 < stacks.total_us(kind="cpu")
    checked(path)


def test_named_when_it_was_launched(tmp_path: Path) -> None:
    told = bpfprof("record", "-o", tmp_path / "x.bpfprof", "--", str(PYPY), "-c", "import time; time.sleep(1)")
    assert re.search(rf"process \S+ \(\d+\): {PYPY_SENTENCE};", " ".join(told.stderr.split()))
