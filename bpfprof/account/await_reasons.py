"""What asyncio tasks waited for: rows of a recording in, places in AWAIT_REASONS out.

The innermost coroutines tell it, as long as they are asyncio's own; else what the task waits for. A better rule makes
old recordings better.
"""

from __future__ import annotations

import re

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.samples import TaskState
from bpfprof.model.states import AWAIT_REASONS
from bpfprof.recording.contents import Recording

_ASYNCIO = re.compile(r"(?:^|/)(asyncio/\w+\.py)$")

# Functions of asyncio's files (3.11 to 3.15), by the outermost one that is here: `Queue.join` waits for an `Event`.
FUNCTIONS = (
    ("asyncio/tasks.py", r"sleep", "sleep"),
    ("asyncio/tasks.py", r"_wait|wait|as_completed.*|_AsCompletedIterator.*", "task"),
    ("asyncio/taskgroups.py", r"TaskGroup\..*", "task"),
    ("asyncio/locks.py", r".*", "lock"),
    ("asyncio/queues.py", r"Queue\..*", "queue"),
    ("asyncio/streams.py", r".*", "socket"),
    ("asyncio/selector_events.py", r"BaseSelectorEventLoop\..*", "socket"),
    ("asyncio/base_events.py", r"Server\..*", "socket"),
    ("asyncio/base_subprocess.py", r".*", "child"),
    ("asyncio/subprocess.py", r"Process\..*", "child"),
    ("asyncio/threads.py", r"to_thread", "executor"),
)
# Then the type of what is waited for, and the first function that is called when that is done.
TYPES = {
    "Task": "task",
    "_GatheringFuture": "task",  # Lib/asyncio/tasks.py
    "_SyncSocketReaderFuture": "socket",  # uvloop/loop.pyx (v0.23.0)
    "_SyncSocketWriterFuture": "socket",
}
CALLBACKS = {
    "_chain_future.<locals>._call_check_cancel": "executor",  # Lib/asyncio/futures.py
    "shield.<locals>._outer_done_callback": "task",  # Lib/asyncio/tasks.py
}
# Then the innermost function.
INNERMOST = {("asyncio/tasks.py", "wait_for"): "task"}  # until 3.11; later it is not the innermost, but for a future
_FUNCTIONS = [(file, re.compile(function), reason) for file, function, reason in FUNCTIONS]


def await_reasons(recording: Recording) -> npt.NDArray[np.uint8]:
    """For each of the recording's task_waits."""
    rows = recording.task_waits
    keys, which = np.unique(rows[["stack", "waits_for", "callback", "state"]], return_inverse=True)
    ends = np.cumsum(recording.stacks["python_count"], dtype=np.int64)
    places = []
    for stack, waits_for, callback, state in keys.tolist():
        end = int(ends[stack - 1]) if stack else 0
        count = int(recording.stacks["python_count"][stack - 1]) if stack else 0
        codes = recording.python_frames["code"][end - count : end].tolist()
        reason = "ready"
        if state == TaskState.SUSPENDED:
            functions = _asyncio_functions(recording, codes)
            reason = reason_of(functions, recording.texts[waits_for], recording.texts[callback])
        places.append(AWAIT_REASONS.index(reason))
    return np.array(places, np.uint8)[which]


def _asyncio_functions(recording: Recording, codes: list[int]) -> list[tuple[str, str]]:
    """(file, function) of the innermost coroutines, as long as they are asyncio's."""
    functions = []
    for number in codes:
        code = recording.codes[number - 1] if 0 < number <= len(recording.codes) else None
        file = asyncio_file(code.filename) if code else ""
        if code is None or not file:
            break
        functions.append((file, code.qualname))
    return functions


def asyncio_file(path: str) -> str:
    """asyncio's own file as FUNCTIONS has it; "" for any other."""
    found = _ASYNCIO.search(path)
    return found[1] if found else ""


def reason_of(functions: list[tuple[str, str]], waits_for: str, callback: str) -> str:
    """A word of AWAIT_REASONS. functions: asyncio's own, the innermost first."""
    for file, function in reversed(functions):
        for known_file, pattern, reason in _FUNCTIONS:
            if file == known_file and pattern.fullmatch(function):
                return reason
    by_type = TYPES.get(waits_for) or CALLBACKS.get(callback)
    return by_type or INNERMOST.get(functions[0] if functions else ("", ""), "future")
