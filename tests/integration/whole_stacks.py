"""How many stacks of a recording reach the start routine of their thread: rows in, a count and reasons out.

A stack counts as whole when nothing of it is missing and its root is what the kernel started: `_start` or the clone
wrapper of the C library. Waits that began before the recording have no native frames (that would take stopping the
target) and are not counted; each thread has one at most. Unwind tables are taken from the cache, where a first
recording would have put them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.model.ids import Pid
from bpfprof.model.statuses import Status
from bpfprof.proc.maps import open_mapped_file, read_maps
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource
from bpfprof.unwind.cache import load_rows

ROOTS = {"_start", "clone3", "clone", "__clone3", "__clone"}
NOT_STARTED = int(Status.NOT_STARTED)


@dataclass
class Reached:
    """Samples or waits of one process: how many, how many whole, and why the others are not."""

    count: int
    whole: int
    reasons: Counter[str]

    @property
    def percent(self) -> float:
        return 100 * self.whole / max(1, self.count)


def why_not_whole(source: StackSource, stack: int, status: int) -> str:
    """ "" for a stack that reaches the root of its thread."""
    if not stack:
        return source.reason(status)
    frames = source.frames(stack, status)
    reason = source.reason(int(source.statuses[stack]))
    if reason or (frames and frames[0].name in ROOTS):
        return reason
    return f"root is {frames[0].name}" if frames else "no frames"


def rows_of(read_back: Recording, pid: int, rows: np.ndarray) -> np.ndarray:
    """Those of one process, without waits that began before the recording; `rows`: the recording's samples or waits."""
    mine = [read_back.processes[thread.process].pid == pid for thread in read_back.threads]
    rows = rows[np.array(mine)[rows["thread"]]]
    if "blocked_ns" in (rows.dtype.names or ()):
        is_first = np.zeros(len(rows), bool)
        is_first[np.unique(rows["thread"], return_index=True)[1]] = True
        native_counts = np.append([0], read_back.stacks["native_count"])
        before = is_first & (native_counts[rows["stack"]] == 0)
        rows = rows[~before & ((rows["stack"] > 0) | (rows["status"] != NOT_STARTED))]
    return rows


def reached(read_back: Recording, pid: int, rows: np.ndarray, source: StackSource | None = None) -> Reached:
    """`rows`: the recording's samples or waits; `source`: of the recording, with the interpreter's frames."""
    source, rows = source or StackSource(read_back, show_interpreter=True), rows_of(read_back, pid, rows)
    reasons: Counter[str] = Counter()
    pairs, counts = np.unique(rows[["stack", "status"]], return_counts=True)
    for (stack, status), count in zip(pairs.tolist(), counts.tolist()):
        reasons[why_not_whole(source, stack, status)] += count
    return Reached(len(rows), reasons.pop("", 0), reasons)


def make_tables(pid: Pid) -> None:
    """Puts the unwind tables of all that a process has mapped into the cache."""
    for mapping in read_maps(pid):
        if mapping.is_executable and mapping.is_file:
            with suppress(ElfError), ElfImage(open_mapped_file(pid, mapping)) as image:
                load_rows(image, image.status())
