"""What a recording of a known program has right: its rows and what the program told in, counts out."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.recording.contents import Recording
from bpfprof.stacks.python_frames import PythonSource
from bpfprof.stacks.stitch import StackSource
from tests.integration.call_orders import MARKERS, expected, markers
from tests.integration.recorded import program

# Whether C calls each function, where each Python function has not a call of the evaluation function of its own.
_CALLED_BY_C = {"_bootstrap": True, "_bootstrap_inner": False, "level_1": False, "busy": False}
_CALLED_BY_C.update({f"level_{level}": True for level in range(2, 6)})


@dataclass
class Tally:
    """So many of so many."""

    right: int = 0
    total: int = 0

    def add(self, right: int, total: int) -> None:
        self.right += right
        self.total += total


def _counted(rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """(thread, stack, status, how many) of the rows."""
    distinct, counts = np.unique(rows[["thread", "stack", "status"]], return_counts=True)
    for (thread, stack, status), count in zip(distinct.tolist(), counts.tolist()):
        yield thread, stack, status, count


def _loop_lines(file: str, function: str) -> set[int]:
    """The lines of the loop in which a function ends."""
    for node in ast.parse(Path(program(file)).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            loop = node.body[-1]
            return set(range(loop.lineno, (loop.end_lineno or loop.lineno) + 1))
    raise LookupError(function)


class Deep:
    """Stacks as deep.py told them: for each frame shown the function and the line, in their order, and no other."""

    def __init__(self, threads: dict[str, Any], leaf: str) -> None:
        self._truth = {int(tid): [tuple(it) for it in thread["stack"]] for tid, thread in threads.items()}
        self._lines = _loop_lines("deep.py", leaf)
        self.wrong: Counter[str] = Counter()

    def judge(
        self, source: StackSource, read_back: Recording, rows: np.ndarray, functions: Tally, lines: Tally
    ) -> None:
        for thread, stack, status, count in _counted(rows):
            truth = self._truth.get(read_back.threads[thread].tid)
            if truth is None or not stack:
                continue
            frames = source.frames(stack, status)
            has_right_names, has_right_lines = self._judge(frames, truth)
            functions.add(count * has_right_names, count)
            lines.add(count * has_right_lines, count)
            if not has_right_lines:
                text = " < ".join(f"{it.name}:{it.line}" for it in reversed(frames[-4:]))
                self.wrong[f"deep: {len(frames)} frames, {text}"] += count

    def _judge(self, frames: tuple[Frame, ...], truth: list[tuple[str, int]]) -> tuple[bool, bool]:
        found = [(it.name, it.line) for it in frames if it.kind == FrameKind.PYTHON]
        if frames and frames[0].kind == FrameKind.TRUNCATED:  # no more is asked of it than of what it shows
            truth = truth[len(truth) - len(found) :]
        names = [name for name, _ in found] == [name for name, _ in truth]
        lines = found[:-1] == truth[:-1] and (not found or found[-1][1] in self._lines)
        return names, names and lines


def judge_order(
    source: StackSource,
    read_back: Recording,
    rows: np.ndarray,
    kinds: dict[int, list[str]],
    has_symbols: bool,
    order: Tally,
    wrong: Counter[str],
) -> None:
    """Stacks of call_order.py that have Python and C in turns as they were called, from the root as far as they go."""
    named = set(MARKERS) - (set() if has_symbols else {"sorted"})
    for thread, stack, status, count in _counted(rows):
        tid = read_back.threads[thread].tid
        if tid not in kinds:
            continue
        frames = tuple(f"{it.name} ()" for it in source.frames(stack, status))
        # The key of sorted() is called by list.sort: builtin_sorted is not always on the way.
        found = [it for it in markers(frames) if it not in MARKERS or it in named]
        is_right = found == expected(kinds[tid], named)[: len(found)] and not frames[0].startswith("[")
        order.add(count * is_right, count)
        if not is_right:
            wrong[f"order: {frames[0]} {' '.join(found)}"] += count


def judge_entries(read_back: Recording, rows: np.ndarray, entries: Tally, wrong: Counter[str]) -> None:
    """Python frames of which it is known who called them: an entry mark where C did, none where Python did."""
    source = PythonSource(read_back)
    ends = np.cumsum(read_back.stacks["python_count"], dtype=np.int64)
    for thread, stack, _, count in _counted(rows):
        process = read_back.processes[read_back.threads[thread].process]
        if not stack or process.python is None:
            continue
        end = int(ends[stack - 1])
        begin = end - int(read_back.stacks["python_count"][stack - 1])
        python = read_back.python_frames[begin:end]
        marks = [*(python["mark"] >= process.entry_marks_from).tolist(), None]
        frames = source.frames(begin, end)
        for number, frame in enumerate(frames):
            if marks[number] and not process.shim_is_python:
                continue
            mark = marks[number + (not process.shim_is_python)]
            # Before 3.11 each Python function has a call of its own.
            truth = process.python < (3, 11) or _CALLED_BY_C.get(frame.name.rpartition(".")[2])
            if mark is not None and truth is not None:
                entries.add(count * (mark == truth), count)
                if mark != truth:
                    wrong[f"entry: {frame.name} {mark}"] += count
