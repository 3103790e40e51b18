"""What is known of each wait of a recording beside its row: its reason, and the wait for a GIL it is a slice of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof.account.gil import GilWaits, find_gil_waits
from bpfprof.account.intervals import Intervals
from bpfprof.account.kernel_reasons import KernelHints
from bpfprof.account.reasons import as_waits, wait_reasons
from bpfprof.account.short_waits import summed
from bpfprof.recording.reader import Recording

_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """reasons and is_first (begins a wait, is no later slice of one) are in the order of places of Intervals.waits."""

    reasons: npt.NDArray[np.uint16]
    is_first: npt.NDArray[np.bool_]
    gil: GilWaits
    sums: npt.NDArray[np.void]  # SUM_DTYPE, by thread

    def whole_ns(self, begin: int, blocked_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How long the waits were blocked that rows from place `begin` on, blocked for so long, are slices of."""
        first, last = np.searchsorted(self.gil.places, (begin, begin + len(blocked_ns)))
        whole = blocked_ns.copy()
        whole[self.gil.places[first:last] - begin] = self.gil.whole_ns[first:last]
        return whole


def collect_facts(recording: Recording, intervals: Intervals) -> WaitFacts:
    """Needs the recording's own tables only, no frames but those of the kernel."""
    namer = _Namer(recording)
    parts = [namer.reasons(rows) for rows in intervals.waits.parts]
    reasons = intervals.waits.in_order(np.concatenate(parts))
    gil = find_gil_waits(recording, intervals, reasons)
    is_first = np.ones(len(reasons), np.bool_)
    is_first[gil.places] = gil.is_first
    short = recording.short_waits
    sums = summed(short, namer.reasons(as_waits(short), short["thread"]), intervals.derived_ns)
    return WaitFacts(reasons, is_first, gil, sums)


class _Namer:
    """Reasons of rows, with what is known of their threads' processes."""

    def __init__(self, recording: Recording) -> None:
        processes = [recording.processes[thread.process] for thread in recording.threads]
        gils = [process.gil or (0, 0) for process in processes] or [(0, 0)]
        self._gil_start = np.array([start for start, _ in gils], np.uint64)
        self._gil_end = self._gil_start + np.array([size for _, size in gils], np.uint64)
        self._of_kernel = np.array([process.is_kernel_thread for process in processes] or [False])
        self._hints = KernelHints(recording)

    def reasons(
        self, rows: npt.NDArray[np.void], threads: npt.NDArray[np.uint32] | None = None
    ) -> npt.NDArray[np.uint16]:
        """In the order of the rows; a bounded number at a time is worked on."""
        thread_of = rows["thread"] if threads is None else threads
        blocks = [np.zeros(0, np.uint16)]
        for begin in range(0, len(rows), _BLOCK_ROWS):
            part, thread = rows[begin : begin + _BLOCK_ROWS], thread_of[begin : begin + _BLOCK_ROWS]
            of_kernel, stack = self._of_kernel[thread], part["stack"]
            in_call = (part["syscall"] >= 0) | of_kernel
            hints = np.where(in_call, self._hints.inside[stack], self._hints.outside[stack])
            blocks.append(wait_reasons(part, self._gil_start[thread], self._gil_end[thread], of_kernel, hints))
        return np.concatenate(blocks)
