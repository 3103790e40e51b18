"""A front in Python that waits for a C++ worker that waits for a device: what one command says of it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.recorded import PROGRAMS, PYTHON, needs_root, program, recording, running
from tests.oracles.limits import slow_devices

pytestmark = needs_root
RECORD_S, DEVICE_BYTES_PER_S = 4, 4096 * 1000


def story(folder: Path, count: int) -> tuple[str, list[float]]:
    """(what `bpfprof record` shows first of so many processes, in one line, what they tell of themselves)"""
    library = str(folder / "libfeeder.so")
    flags = ("-O1", "-g", "-shared", "-fPIC")
    subprocess.run(["g++", *flags, "-o", library, program("device_worker.cpp")], check=True)
    with contextlib.ExitStack() as stack:
        cgroup, devices = stack.enter_context(slow_devices(folder, count, DEVICE_BYTES_PER_S))
        command = (PYTHON, program("device_front.py"), str(cgroup), library, *devices)
        target = stack.enter_context(running(*command))
        recorder = stack.enter_context(recording("-p", target.pid, "-r", 199, "-o", folder / "it.bpfprof"))
        target.tell("from now on")  # of what one process tells
        time.sleep(RECORD_S)
        told = [float(word) for word in target.end().split()] if count == 1 else []
        # One that has ended has ended its recording, too.
        done = recorder.end(None if count == 1 else signal.SIGINT)
        assert done.returncode == 0, done.stderr
        screen = done.stdout
    return " ".join(screen.split("  Try: ")[0].split()), told


def found(pattern: str, text: str) -> list[int]:
    match = re.search(pattern, text)
    assert match, text
    return [int(part) for part in match.groups()]


@pytest.fixture(scope="module")
def line() -> str:
    """Where the front waits."""
    lines = (PROGRAMS / "device_front.py").read_text().splitlines()
    return str(next(number for number, line in enumerate(lines, 1) if line.strip() == "batch = library.worker_take()"))


def test_one_process(tmp_path: Path, line: str) -> None:
    text, (waited, asked) = story(tmp_path, 1)
    (front,) = found(
        rf"The main thread waits (\d+)% of the time for thread feeder \(\d+\), in train \(device_front.py:{line}\)\.",
        text,
    )
    (device,) = found(
        r"That one waits (\d+)% for a device, /dev/loop\d+ BLKZEROOUT, in flush_device \(libfeeder.so\)\.",
        text,
    )
    # Its own clocks count as waiting that it had no CPU after.
    assert abs(front - waited) <= 10 and abs(device - asked) <= 10, (text, waited, asked)


def test_processes_that_share_a_lock(tmp_path: Path, line: str) -> None:
    text, _ = story(tmp_path, 8)
    found(rf"of 8 processes wait (\d+)% of the time for threads feeder, in train \(device_front.py:{line}\)\.", text)
    # Which of the two comes first is a matter of how long the device takes for a short request, which is the kernel's.
    (device,) = found(r"(?:Those|They) wait (\d+)% for a device(?:, /dev/loop\* BLKZEROOUT, in flush_device|\.)", text)
    (lock,) = found(
        r"(?:Those|They) wait (\d+)% for one lock of 8 processes, held in submit \(libfeeder.so\), which waits for a "
        "device",
        text,
    )
    assert lock >= 10 and device >= 10 and 70 <= lock + device <= 100, text
