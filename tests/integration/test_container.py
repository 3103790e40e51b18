"""A container with the capabilities of docs/bpfprof.service alone records the host; without any of them it lacks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfprof.proc.privilege import CAPABILITIES
from tests.integration.hardened import after, allowing, as_user, with_capabilities
from tests.integration.recorded import (
    BPFPROF,
    NOBODY,
    ROOT,
    Done,
    Target,
    assert_told,
    collapsed,
    completed,
    needs_root,
    open_folder,
    running,
)

pytestmark = needs_root
UNIT = ROOT / "docs" / "bpfprof.service"
SOMEBODY = 1234


def settings(name: str) -> list[str]:
    """All words that the unit gives a setting."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines())
    return [word for key, _, value in lines if key == name for word in value.split()]


# --- the unit file


@pytest.mark.gate
def test_the_unit_has_exactly_the_capabilities() -> None:
    names = [each.name for each in CAPABILITIES]
    assert settings("AmbientCapabilities") == settings("CapabilityBoundingSet") == names
    assert all(name in (ROOT / "docs" / "hosts.md").read_text() for name in names)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ExecStart=bpfprof", f"ExecStart={BPFPROF[0]}"))
    done = completed(["systemd-analyze", "verify", str(unit)], 0)
    assert UNIT.name not in done.stderr, done.stderr
    completed(["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)], 0)  # 4.0 of 10


def permitted_calls() -> set[str]:
    """System calls that the unit's filter lets pass, groups resolved."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    groups: dict[str, list[str]] = {}
    for line in completed(["systemd-analyze", "--no-pager", "syscall-filter"], 0).stdout.splitlines():
        word = line.strip()
        if line.startswith("@"):
            members = groups.setdefault(word, [])
        elif word and not word.startswith("#") and groups:
            members.append(word)
    calls, todo = set(), settings("SystemCallFilter")
    while todo:
        word = todo.pop()
        todo += groups[word] if word.startswith("@") else []
        calls.add(word)
    return calls


# --- the container: own file system, as little of it as bpfprof needs, and the host's pids

CONTAINER = f"""
mount --make-rprivate /
mount -t tmpfs none /mnt
cd /mnt
mkdir proc sys dev tmp out old
mount -t tmpfs none tmp # first, for the checkout can be below /tmp
for folder in usr lib lib64 bin sbin etc {str(ROOT)[1:]}; do
    test -e /$folder || continue
    mkdir -p $folder && mount --bind /$folder $folder && mount -o remount,bind,ro $folder
done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
mount --bind "$BPFPROF_TEST_FOLDER" out
mount -o remount,ro /mnt
pivot_root . old
umount -l /old
cd /out
"""


def record_in_container(names: list[str], uid: int, folder: Path, *arguments: str | float) -> Done:
    """`bpfprof record -o x.bpfprof` of programs of the host."""
    prefix = [*after(CONTAINER, "--uts", "--ipc", "--net"), *with_capabilities(names, uid)]
    command = [*prefix, *BPFPROF, "record", "-o", "/out/x.bpfprof", *map(str, arguments)]
    environment = {**os.environ, "BPFPROF_TEST_FOLDER": str(folder), "XDG_CACHE_HOME": "/nowhere"}
    return completed(command, None, env=environment)


WORK = """
import time
def burn():
    while True:
        sum(range(300_000))
        time.sleep(0.005)
print("ready", flush=True)
burn()
"""


@contextmanager
def upgraded_program(folder: Path) -> Iterator[Target]:
    """A program of another user, whose interpreter was deleted since it began."""
    python = folder / "python-of-old"
    shutil.copy(os.path.realpath(sys.executable), python)
    with running(*as_user(SOMEBODY), str(python), "-c", WORK, env={"PYTHONHOME": sys.base_prefix}) as target:
        python.unlink()
        yield target


@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_container_with_these_capabilities_alone(uid: int) -> None:
    names = settings("CapabilityBoundingSet")
    with open_folder(uid) as folder, open_folder() as programs, upgraded_program(programs) as target:
        what = ["-a"] if uid else ["-p", target.pid]
        # Where others take the CPUs, the first look at all processes of the host takes seconds of the recording.
        for seconds in (1.5, 6, 20):
            assert_told(record_in_container(names, uid, folder, *what, "--kernel", "-d", seconds), 0)
            folded = collapsed(folder / "x.bpfprof").of_process(target.pid)
            if folded.total_us("burn") > 0.5e6:
                break
        assert folded.total_us("burn") > 0.5e6
        assert any(
            frame.endswith("_[k]") and frame != "[unknown]_[k]" for _, _, stack, _ in folded.lines for frame in stack
        )


@pytest.mark.second_tier
@pytest.mark.gate
@pytest.mark.parametrize("left_out", [each.name for each in CAPABILITIES])
def test_none_of_them_is_superfluous(left_out: str) -> None:
    names = [name for name in settings("CapabilityBoundingSet") if name != left_out]
    with open_folder(NOBODY) as folder, open_folder() as programs, upgraded_program(programs) as target:
        done = record_in_container(names, NOBODY, folder, "-p", target.pid, "--kernel", "-d", "2")
        if left_out in ("CAP_BPF", "CAP_PERFMON"):
            assert_told(done, 3, left_out)
            return
        assert_told(done, 0)
        folded = collapsed(folder / "x.bpfprof")
        kernel = {frame for _, _, stack, _ in folded.lines for frame in stack if frame.endswith("_[k]")}
        has_kernel_names = any(frame != "[unknown]_[k]" for frame in kernel)
        assert ("burn" in folded.functions()) == (left_out == "CAP_SYSLOG")
        assert has_kernel_names == (left_out != "CAP_SYSLOG")


def test_the_filter_of_the_unit_lets_pass_what_is_needed() -> None:
    """Compiled anew, as at the first start of the service."""
    calls = permitted_calls()
    names = settings("CapabilityBoundingSet")
    with open_folder(NOBODY) as folder:
        environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(folder)}
        command = [*with_capabilities(names, NOBODY), *BPFPROF, "doctor"]
        # setpriv is inside of the filter; what it needs is allowed to it on top.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, preexec_fn=allowing(calls)
        )
        assert_told(done, 0)
    assert "a filter is on" in done.stdout and "can record here" in done.stdout and "in burn()" in done.stdout
