"""What asyncio tasks wait for: a row of the tables each, and which of several rules decides."""

from __future__ import annotations

import pytest

from bpfprof.account.await_reasons import CALLBACKS, FUNCTIONS, INNERMOST, TYPES, await_reasons, reason_of
from bpfprof.model.samples import TaskState
from bpfprof.model.states import AWAIT_REASONS
from tests.unit.recording.hand_made import START_NS, HandMade

LIBRARY = "/usr/lib/python3.12/asyncio"
# A function of each row of FUNCTIONS, in its order.
FUNCTIONS_OF_ROWS = ["sleep", "_wait", "TaskGroup.__aexit__", "Event.wait", "Queue.get", "StreamReader._wait_for_data"]
FUNCTIONS_OF_ROWS += ["BaseSelectorEventLoop.sock_recv", "Server.serve_forever", "BaseSubprocessTransport._wait"]
FUNCTIONS_OF_ROWS += ["Process.wait", "to_thread"]


def reason(*functions: tuple[str, str], waits_for: str = "_asyncio.Future", callback: str = "", state: int = 0) -> str:
    """Of a task with these coroutines, the innermost first."""
    made = HandMade()
    made.process()
    codes = [made.code(function, filename=file) for file, function in functions]
    stack = made.stack(*((code, 4, 0) for code in codes)) if codes else 0
    made.task_wait(made.task("one"), START_NS, START_NS + 1, stack, waits_for, callback, state=state)
    (place,) = await_reasons(made.recording())
    return AWAIT_REASONS[place]


@pytest.mark.parametrize("row", range(len(FUNCTIONS)))
def test_functions(row: int) -> None:
    file, _, expected = FUNCTIONS[row]
    path = f"{LIBRARY}/{file.partition('/')[2]}"
    assert reason((path, FUNCTIONS_OF_ROWS[row]), ("/app/main.py", "main")) == expected
    assert reason(("/app/main.py", FUNCTIONS_OF_ROWS[row])) == "future"  # another one of the same name


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    assert reason(("/app/main.py", "main"), waits_for=name) == TYPES[name]


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks(name: str) -> None:
    assert reason(("/app/main.py", "main"), callback=name) == CALLBACKS[name]


@pytest.mark.parametrize("function", INNERMOST)
def test_innermost(function: tuple[str, str]) -> None:
    assert reason_of([function], "_asyncio.Future", "") == INNERMOST[function]


def test_the_outermost_function_of_asyncio_decides() -> None:
    event, join = (f"{LIBRARY}/locks.py", "Event.wait"), (f"{LIBRARY}/queues.py", "Queue.join")
    assert reason(event, join, ("/app/main.py", "main")) == "queue"
    timeout = f"{LIBRARY}/tasks.py", "wait_for"
    assert reason(event, timeout, ("/app/main.py", "main")) == "lock"
    # But not beyond the program's own functions.
    assert reason(event, ("/app/main.py", "main"), join) == "lock"


def test_ready_and_unknown() -> None:
    sleep = f"{LIBRARY}/tasks.py", "sleep"
    assert reason(sleep, state=TaskState.READY) == "ready"
    assert reason() == "future"
    assert reason(("<frozen asyncio.tasks>", "sleep")) == "future"
