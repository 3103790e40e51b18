"""The Python functions of all stacks of a recording, and which of them are functions that are known by name."""

from __future__ import annotations

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.threads import Int64Array
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedCode

Bools = npt.NDArray[np.bool_]
Mark = tuple[str, str]  # (end of the file's path, function without its class)


class StackFunctions:
    """All Python frames of the recording that are functions, leaf first stack by stack. depth: 0 for the outermost.

    stack: the number of each one's stack, from 1 on.
    """

    def __init__(self, recording: Recording) -> None:
        stacks = recording.stacks
        self.stack_count = len(stacks)
        counts = stacks["python_count"].astype(np.int64)
        rows = recording.python_frames[: int(counts.sum())]
        stack = np.repeat(np.arange(1, len(stacks) + 1), counts)
        # Where an entry of the interpreter is a frame of its own, it is none of a function.
        first_mark = np.array(
            [
                256 if each.shim_is_python or each.python is None else each.entry_marks_from
                for each in recording.processes
            ]
            or [256]
        )
        process = np.minimum(stacks["process"], len(first_mark) - 1)
        kept = rows["mark"] < first_mark[process][stack - 1]
        self._codes, self.stack = rows["code"][kept].astype(np.int64), stack[kept]
        self._code_rows = [RecordedCode(0, "", "", 0, "", b""), *recording.codes]
        self._codes[self._codes >= len(self._code_rows)] = 0
        self.is_innermost = np.append(True, self.stack[1:] != self.stack[:-1])[: len(self.stack)]
        ends = np.searchsorted(self.stack, self.stack, side="right")
        self.depth = ends - 1 - np.arange(len(self.stack))
        self._by_function: dict[str, list[int]] = {}
        for index, code in enumerate(self._code_rows):
            self._by_function.setdefault(code.qualname.rpartition(".")[2], []).append(index)

    def are(self, mark: Mark) -> Bools:
        """For each frame, whether it has this mark."""
        tail, function = mark
        is_marked = np.zeros(len(self._code_rows), np.bool_)
        candidates = self._by_function.get(function, [])
        is_marked[
            [candidate for candidate in candidates if ("/" + self._code_rows[candidate].filename).endswith("/" + tail)]
        ] = True
        return np.asarray(is_marked[self._codes])

    def with_innermost(self, mark: Mark | None = None) -> Bools:
        """For each stack by its number, whether its innermost Python function has this mark; None: it has any."""
        found = np.zeros(self.stack_count + 1, np.bool_)
        found[self.stack[self.is_innermost if mark is None else self.is_innermost & self.are(mark)]] = True
        return found


def function_paths(recording: Recording) -> Int64Array:
    """A number for each stack (0: no stack), the same for stacks that differ in lines only."""
    codes, counts = recording.python_frames["code"], recording.stacks["python_count"]
    ends = np.cumsum(counts, dtype=np.int64)
    numbers: dict[bytes, int] = {}
    paths = np.zeros(len(counts) + 1, np.int64)
    for index, (end, count) in enumerate(zip(ends.tolist(), counts.tolist()), 1):
        paths[index] = numbers.setdefault(codes[end - count : end].tobytes(), len(numbers) + 1)
    return paths
