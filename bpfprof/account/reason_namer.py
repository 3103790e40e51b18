"""Rows of waits of a recording -> their reasons, with what is known of the processes of their threads."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.columns import Columns
from bpfprof.account.kernel_reasons import device_stacks, kernel_hints
from bpfprof.account.reasons import by_any_means, wait_reasons
from bpfprof.model.states import reason_number
from bpfprof.recording.contents import Recording


class ReasonNamer:
    """Of one recording."""

    def __init__(self, recording: Recording) -> None:
        processes = [recording.processes[thread.process] for thread in recording.threads]
        gils = [process.gil or (0, 0) for process in processes] or [(0, 0)]
        self._gil_start = np.array([start for start, _ in gils], np.uint64)
        self._gil_end = self._gil_start + np.array([size for _, size in gils], np.uint64)
        self._of_kernel = np.array([process.is_kernel_thread for process in processes] or [False])
        self._outside, self._inside = kernel_hints(recording)
        self._in_device_call = device_stacks(recording)

    def reasons(self, rows: Columns | npt.NDArray[np.void]) -> npt.NDArray[np.uint16]:
        """In the order of the rows: waits, or short ones as_waits()."""
        thread, stack = rows["thread"], rows["stack"]
        of_kernel = self._of_kernel[thread]
        in_call = (rows["syscall"] >= 0) | of_kernel
        hints = np.where(in_call, self._inside[stack], self._outside[stack])
        reasons = wait_reasons(rows, self._gil_start[thread], self._gil_end[thread], of_kernel, hints)
        reasons[self._in_device_call[stack] & by_any_means(reasons)] = reason_number("device")
        return reasons
