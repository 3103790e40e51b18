"""What is said while a recording waits for unwind tables, on standard error: a TablesWait in, a line or nothing out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from bpfprof.capture.watch import TablesWait
from bpfprof.code.files import CodeFile
from bpfprof.commands.outputs import tell
from bpfprof.commands.terminal import CLEAR_LINE, acts_on_codes
from bpfprof.proc.text import without_controls

_SILENT_S = 0.3  # shorter waits are not spoken of
_NAMES = 3


class TablesLine:
    """On a terminal a line that is rewritten, where it takes longer; everywhere what was not ready in time."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty() and acts_on_codes()
        self._is_shown = False

    def update(self, wait: TablesWait) -> None:
        """While it is waited, and once when it is over."""
        waited_s = time.monotonic() - wait.begin_s
        if self._is_shown:
            sys.stderr.write(CLEAR_LINE)
        if wait.is_over and wait.left:
            cut = f"stacks through {_names(wait.left)} are cut until it is read"
            tell(f"read {_megabytes(wait.read)} of libraries in {waited_s:.1f} s; {cut}")
        elif waited_s >= _SILENT_S and not wait.is_over and self._is_terminal:
            share = _bytes(wait.read) / max(_bytes(wait.files), 1)
            sys.stderr.write(f"reading {_megabytes(wait.files)} of libraries ... {share:.0%}")
            self._is_shown = True
        sys.stderr.flush()


def _names(files: Sequence[CodeFile]) -> str:
    """The largest of them."""
    ordered = sorted(files, key=lambda file: file.byte_count, reverse=True)
    names = ", ".join(without_controls(os.fsencode(os.path.basename(file.path))) for file in ordered[:_NAMES])
    return f"{names} and {len(files) - _NAMES:,} more" if len(files) > _NAMES else names


def _bytes(files: Sequence[CodeFile]) -> int:
    return sum(file.byte_count for file in files)


def _megabytes(files: Sequence[CodeFile]) -> str:
    return f"{_bytes(files) / 1e6:,.0f} MB"
