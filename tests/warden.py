"""Ends what a run of the tests leaves behind, however it ends: also where it is killed, and cannot do so itself.

`python -I -S warden.py MARK` waits for the end of its standard input, which is that of the run, and kills every process
whose environment has the mark, with those it started. Control groups that they were in, and the run was not, go too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "BPFPROF_TEST_RUN"
_ROUNDS, _PAUSE_S = 100, 0.05
_pipes: list[int] = []  # open for as long as this process lives


def start() -> None:
    """Of this process: all that it starts from now on ends with it."""
    mark = os.environ[VARIABLE] = f"{os.getpid()}-{time.time_ns()}"
    ours, theirs = os.pipe()
    command = [sys.executable, "-I", "-S", __file__, mark]
    plain = {key: value for key, value in os.environ.items() if key != VARIABLE}
    subprocess.Popen(
        command, stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=plain, start_new_session=True
    )
    os.close(ours)
    _pipes.append(theirs)


def _marked(mark: str) -> set[int]:
    """With their descendants: of another user's, or behind sudo, the environment is another."""
    wanted, parents, found = f"{VARIABLE}={mark}".encode(), {}, set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[pid] = int(parent)
            if state != "Z" and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] not in found:
            line.append(parents[line[-1]])
        if line[-1] in found:
            found.update(line)
    return found


def _groups(pid: int | str) -> set[Path]:
    """Where the control groups of a process are; of v1 by the names that they are mounted under."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            folders = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", f"/sys/fs/cgroup/{names.removeprefix('name=')}")
            found |= {Path(folder + path) for folder in folders}
    return found


def _end(mark: str) -> None:
    own, groups = _groups("self"), set()
    for _ in range(_ROUNDS):
        left = _marked(mark)
        if not left:
            break
        for pid in left:
            groups |= _groups(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    for group in sorted(groups - own, key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):  # others are in it, or it is there under another name
            group.rmdir()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _end(sys.argv[1])


if __name__ == "__main__":
    main()
