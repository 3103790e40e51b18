"""`bpfprof record` as a process of its own, which records the one that starts it: a notebook's kernel, a run of tests.

In: options of `record`. Out: the recording in a file. Imports nothing that takes long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bpfprof.commands.starting import BEGUN
from bpfprof.errors import BpfprofError, UnsupportedError
from bpfprof.proc.privilege import REQUIRED, missing

_OWN_WORD = "bpfprof: "


class Recorder:
    """A recording of this process under way, into a file; `messages` is what the command has said."""

    def __init__(self, path: Path, options: Sequence[str] = ()) -> None:
        """Returns when it has begun. Raises BpfprofError when it cannot, with what the command says of it."""
        self.path, self.messages = path, list[str]()
        target = ["--until-eof", "--pid", str(os.getpid()), "-f", "recording", "-o", str(path)]
        command = [*_as_root(), *_own_command(), "record", *options, *target]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)
        except OSError as error:
            raise UnsupportedError(f"{command[0]} could not be started: {error.strerror}") from error
        assert self._process.stderr is not None
        self._lines = self._process.stderr
        try:
            # What comes later waits in the pipe, so that no thread of the target has to wait for it.
            while not self._has_begun and self._read_line():
                pass
        except BaseException:
            self._reap()
            raise
        if not self._has_begun:
            self._reap()
            raise self._failure()

    def stop(self) -> None:
        """Ends it; the file is whole when this returns. Raises BpfprofError when it is not."""
        if self._reap():
            raise self._failure()

    @property
    def _has_begun(self) -> bool:
        return bool(self.messages) and self.messages[-1].startswith(BEGUN)

    def _read_line(self) -> bool:
        line = self._lines.readline().decode("utf-8", "replace")
        self.messages += [line.rstrip("\n")] * bool(line)
        return bool(line)

    def _reap(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        while self._read_line():
            pass
        self._lines.close()
        return self._process.wait()

    def _failure(self) -> BpfprofError:
        """Its own words; those of sudo come with what would help."""
        said = [line for line in self.messages if line]
        own = [place for place, line in enumerate(said) if line.startswith(_OWN_WORD)]
        if own:
            error = BpfprofError(said[own[-1]].removeprefix(_OWN_WORD), "\n".join(said[own[-1] + 1 :]).strip())
        elif said and said[-1].startswith("sudo:"):
            hint = "run `sudo -v` in the same terminal before, start this as root, or let sudo ask no password for it"
            error = UnsupportedError(f"recording needs root, and sudo asks for a password ({said[-1]})", hint)
        else:
            last = said[-1] if said else f"it ended with status {self._process.returncode}"
            error = BpfprofError(f"the recording failed: {last}")
        error.exit_code = self._process.returncode if own else error.exit_code
        return error


def _as_root() -> list[str]:
    """Without asking for a password; without sudo the command says itself what it lacks."""
    sudo = shutil.which("sudo")
    return [sudo, "-n", "--"] if missing(REQUIRED) and os.geteuid() != 0 and sudo else []


def _own_command() -> list[str]:
    """That of this Python's environment; where it has no BCC, that of the system if there is one."""
    beside = Path(sys.executable).with_name("bpfprof")
    found = [str(beside)] if beside.exists() else []
    other = shutil.which("bpfprof")
    if other and (not found or find_spec("bcc") is None):
        found = [other]
    return found or [sys.executable, "-I", "-m", "bpfprof"]
