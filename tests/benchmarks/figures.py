"""What the benchmarks share: targets, recordings in this process, and the one way a figure is printed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bpfprof.capture.options import CaptureOptions  # noqa: E402
from bpfprof.capture.session import Session  # noqa: E402
from bpfprof.capture.stop import StopRequest  # noqa: E402
from bpfprof.capture.targets import Targets  # noqa: E402
from bpfprof.capture.watch import Watch  # noqa: E402
from bpfprof.kernel.kernel_side import KernelSide  # noqa: E402
from bpfprof.model.ids import Pid  # noqa: E402
from bpfprof.recording.writer import RecordingWriter  # noqa: E402

PROGRAMS = ROOT / "tests" / "programs"


def show(name: str, value: float, unit: str) -> None:
    """One figure a line."""
    print(f"{name} {value:.4g} {unit}", flush=True)


def python() -> str:
    """The interpreter that runs the targets: BPFPROF_BENCH_PYTHON, else the newest pyenv 3.12, else this one."""
    found = sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python"))
    return os.environ.get("BPFPROF_BENCH_PYTHON") or (str(found[-1]) if found else sys.executable)


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed its first line."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()


def record_here(
    pids: Sequence[int],
    seconds: float,
    during: Callable[[dict[str, int]], None] | None = None,
    rate_hz: int = 99,
    native: bool = True,
    at_end: Callable[[list[int]], None] | None = None,
    **options: Any,
) -> Session:
    """Records in this process for so long; `during` gets the descriptors of the programs once all is attached.

    `at_end` gets the counters of enum bp_status.
    """
    kernel = KernelSide.start()
    targets = tuple(Pid(pid) for pid in pids)
    watch = Watch.of(CaptureOptions(targets, seconds, rate_hz, native=native, **options), kernel, Targets.open(targets))
    with tempfile.TemporaryFile() as file:
        try:
            watch.start()
            session = Session(watch, RecordingWriter(file.fileno()))
            stop = StopRequest()
            session.begin(stop)
            if during is not None:
                during(kernel.programs())
            session.run(lambda _progress: None, stop)
            session.finish(stop)
            if at_end is not None:
                at_end(kernel.tables.counters())
        finally:
            watch.close()
            kernel.close()
    return session


class RunTime:
    """Mean run time of a program between two looks, by the kernel's statistics (they add 20 to 40 ns a run)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = self._now()

    def _now(self) -> tuple[int, int]:
        """(nanoseconds, runs) up to now."""
        lines = Path(f"/proc/self/fdinfo/{self._fd}").read_text().splitlines()
        fields = dict(line.split(":\t") for line in lines)
        return int(fields["run_time_ns"]), int(fields["run_cnt"])

    def mean_ns(self) -> tuple[float, int]:
        """(nanoseconds a run, runs) since the start or the last call."""
        now = self._now()
        runs = now[1] - self._before[1]
        mean = (now[0] - self._before[0]) / max(1, runs)
        self._before = now
        return mean, runs
