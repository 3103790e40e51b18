"""Control groups with too little of something, for a while."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = 64 << 20
WRITTEN_PER_S = 8 << 20
_ENDED_WITHIN_S = 10
_PERIOD_US = 50_000


@contextmanager
def memory_limit() -> Iterator[Path]:
    """The folder of one whose memory is limited. Raises OSError where none can be made."""
    with _control_group("memory", "memory") as (made, is_v1):
        (made / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(MEMORY))
        yield made


@contextmanager
def cpu_limit(part: float) -> Iterator[Path]:
    """The folder of one that may use this part of a CPU. Raises OSError where none can be made."""
    with _control_group("cpu", "cpu") as (made, is_v1):
        if is_v1:
            (made / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (made / "cpu.cfs_quota_us").write_text(str(int(part * _PERIOD_US)))
        else:
            (made / "cpu.max").write_text(f"{int(part * _PERIOD_US)} {_PERIOD_US}")
        yield made


@contextmanager
def slow_disk(folder: Path) -> Iterator[Path]:
    """The folder of one for which the disk below `folder` is slow to write. Raises OSError where none can be made."""
    with _slow_to_write([_disk_of(folder)], WRITTEN_PER_S) as made:
        yield made


@contextmanager
def slow_devices(folder: Path, count: int, bytes_per_s: int) -> Iterator[tuple[Path, list[str]]]:
    """(a control group for which block devices are slow to write, so many such devices); their data is in `folder`.

    Raises OSError or CalledProcessError where none can be made.
    """
    with contextlib.ExitStack() as stack:
        paths = []
        for number in range(count):
            file = folder / f"disk-{number}"
            with file.open("wb") as data:
                data.truncate(16 << 20)
            made = subprocess.run(["losetup", "-f", "--show", file], check=True, capture_output=True, text=True)
            paths.append(made.stdout.strip())
            stack.callback(subprocess.run, ["losetup", "-d", paths[-1]], check=True)
        numbers = [os.stat(path).st_rdev for path in paths]
        disks = [f"{os.major(number)}:{os.minor(number)}" for number in numbers]
        yield stack.enter_context(_slow_to_write(disks, bytes_per_s)), paths


@contextmanager
def _slow_to_write(disks: list[str], bytes_per_s: int) -> Iterator[Path]:
    """disks: MAJOR:MINOR."""
    with _control_group("blkio", "io") as (made, is_v1):
        for disk in disks:
            if is_v1:
                (made / "blkio.throttle.write_bps_device").write_text(f"{disk} {bytes_per_s}")
            else:
                (made / "io.max").write_text(f"{disk} wbps={bytes_per_s}")
        yield made


@contextmanager
def _control_group(v1_name: str, v2_name: str) -> Iterator[tuple[Path, bool]]:
    """(the folder of a new one with a controller, whether it is of version 1)"""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    v1 = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup" and v1_name in fields[3].split(",")]
    v2 = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not v1 + v2:
        raise OSError("no control groups are mounted")
    made = (v1 + v2)[0] / f"bpfprof-answers-{os.getpid()}"
    if not v1:
        (v2[0] / "cgroup.subtree_control").write_text(f"+{v2_name}")
    made.mkdir()
    try:
        yield made, bool(v1)
    finally:
        _remove(made)


def _remove(made: Path) -> None:
    """When the last of its processes, which are told to end before, has ended."""
    end_s = time.monotonic() + _ENDED_WITHIN_S
    while True:
        try:
            return made.rmdir()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)


def _disk_of(folder: Path) -> str:
    """MAJOR:MINOR of the whole disk, which is what can be limited."""
    device = folder.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    return ((found.parent if (found / "partition").exists() else found) / "dev").read_text().strip()
