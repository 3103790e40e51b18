"""What the tests of a kernel share: the command, programs to record, and the facts that a row of the matrix reports.

They run on the kernel at hand, and in the machines that vagrant/run.sh starts, where $BPFPROF_REPORTS is set.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bpfprof.cpython.layouts_dynamic import SUPPORTED_VERSIONS

PROGRAMS = Path(__file__).parents[1] / "programs"
# An emulated CPU is some twenty times slower, or forty where the host serves others, too; what it takes to read a
# file's unwind table is a part of that.
IS_EMULATED = "QEMU TCG" in Path("/proc/cpuinfo").read_text()
RECORD_S = 30 if IS_EMULATED else 3
SHORT_S = 6 if IS_EMULATED else 2  # where the unwind tables do not matter
RATE_HZ = 99 if IS_EMULATED else 499
SETTLED_S = 22 if IS_EMULATED else 1  # tables are there then
_COMMAND_S = 400  # a command takes up to 40 s where the CPU is emulated
# Whether the frames of the Python that runs this can be read.
READS_PYTHON = sys.version_info[:2] in SUPPORTED_VERSIONS


# That of a kernel which cannot be used any more afterwards.
collect_ignore = [] if "BPFPROF_REPORTS" in os.environ else ["test_lockdown.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder; the one after which nothing can be recorded is the last."""
    own = [item for item in items if Path(__file__).parent in Path(str(item.fspath)).parents]
    for item in own:
        for mark in (pytest.mark.kernel, pytest.mark.root):
            item.add_marker(mark)
    items.sort(key=lambda item: "test_lockdown" in str(item.fspath))


def bpfprof(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What the command prints, errors included; it must succeed. One that gets stuck prints where its threads are."""
    command = [sys.executable, "-X", "faulthandler", "-m", "bpfprof", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd) as process:
        try:
            text, _ = process.communicate(timeout=_COMMAND_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            text, _ = process.communicate()
    assert process.returncode == 0, text
    return text


@contextmanager
def known(*command: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """tests/programs/known.py, started by this command or the Python of the tests: (pid, process) once it is ready."""
    line = command or (os.path.realpath(sys.executable), str(PROGRAMS / "known.py"))
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "ready"
        yield int(pid), process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def facts() -> Iterator[dict[str, Any]]:
    """What the table of kernels is made of; goes into facts.json of the reports."""
    found: dict[str, Any] = {}
    yield found
    if folder := os.environ.get("BPFPROF_REPORTS"):
        (Path(folder) / "facts.json").write_text(json.dumps(found, indent=1))
