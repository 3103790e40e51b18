"""A user with the capabilities of docs/bpfprof.service and no others, on this kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bpfprof.proc.privilege import CAPABILITIES
from tests.integration.hardened import kernel_setting, with_capabilities
from tests.integration.recorded import NOBODY
from tests.kernel.conftest import READS_PYTHON, SHORT_S, known

_SETTING = "kernel.perf_event_paranoid"


def _record(pid: int, output: Path) -> tuple[int, str]:
    command = with_capabilities([each.name for each in CAPABILITIES], NOBODY)
    command += [sys.executable, "-m", "bpfprof", "record", "--pid", str(pid), "-d", str(SHORT_S), "-o", str(output)]
    environment = {**os.environ, "HOME": "/nonexistent"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    return done.returncode, done.stdout


def test_the_capabilities_of_the_unit_are_enough(tmp_path: Path) -> None:
    """To record a program of root's; a kernel of Debian's asks for more at 3, and that is said."""
    output = tmp_path / "known.txt"
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o777)
    with known() as (pid, _):
        with kernel_setting(_SETTING, "2"):
            status, told = _record(pid, output)
        assert status == 0, told
        text = output.read_text()
        assert ("digest (known.py" if READS_PYTHON else f"({pid});") in text, text
        if "Debian" in os.uname().version:
            with kernel_setting(_SETTING, "3"):
                status, told = _record(pid, output)
            assert status == 3 and f"{_SETTING} is 3, so this kernel asks for CAP_SYS_ADMIN" in told, told
