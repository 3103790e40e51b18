"""A kernel that is locked down while it runs, which nobody can take back: last, and in a machine of the matrix only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kernel.conftest import SHORT_S, bpfprof, known

_LOCKDOWN = Path("/sys/kernel/security/lockdown")


def _lock_down(mode: str) -> None:
    if not _LOCKDOWN.exists():
        subprocess.run(("mount", "-t", "securityfs", "securityfs", "/sys/kernel/security"), check=True)
    _LOCKDOWN.write_text(mode)


def _refusal(*arguments: str) -> str:
    command = (sys.executable, "-m", "bpfprof", *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 3, done.stdout
    assert "processed " not in done.stdout, "the verifier's log"
    return done.stdout


def test_integrity(tmp_path: Path) -> None:
    """That of Secure Boot: kernel memory can be read."""
    _lock_down("integrity")
    with known() as (pid, _):
        bpfprof("record", "--pid", str(pid), "-d", str(SHORT_S), "-o", tmp_path / "known.txt")
    assert "process " in (tmp_path / "known.txt").read_text()


def test_confidentiality() -> None:
    """Not even root's programs may read kernel memory."""
    _lock_down("confidentiality")
    for command in (("doctor",), ("record", "--all", "-d", "1")):
        assert "the kernel is locked down (confidentiality)" in " ".join(_refusal(*command).split())
