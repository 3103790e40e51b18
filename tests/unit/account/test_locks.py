"""Which lock a wait in futex() is for."""

from __future__ import annotations

import pytest

from bpfprof.model.samples import PARKED_BIT
from bpfprof.model.spans import CONDITION_LOCK, PARKED_LOCK, SHARED_LOCK, ThreadState
from tests.unit.profile.views import built
from tests.unit.recording.hand_made import FUTEX, MS, HandMade, Story

THREADING = "/usr/lib/python3.12/threading.py"
USE, WAIT, NOTIFY, EXIT = ("use", "/srv/a.py"), ("Condition.wait",), ("Condition.notify",), ("Condition.__exit__",)
FUTEX_ADDRESS, CONDITION = 0x7F00, 0x7F77_0000_0100
PRIVATE, PARKED = 0x80, 0x80 | 1 << PARKED_BIT


@pytest.mark.parametrize(
    ("innermost", "waker", "operation", "first", "lock"),
    [
        (USE, USE, PRIVATE, 0, FUTEX_ADDRESS),
        (USE, USE, 0, CONDITION, FUTEX_ADDRESS | SHARED_LOCK),
        (USE, USE, PARKED, CONDITION, FUTEX_ADDRESS | PARKED_LOCK),
        (WAIT, NOTIFY, PRIVATE, CONDITION, CONDITION | CONDITION_LOCK),
        (WAIT, NOTIFY, PARKED, CONDITION, CONDITION | CONDITION_LOCK),
        (WAIT, None, PRIVATE, CONDITION, CONDITION | CONDITION_LOCK),
        (WAIT, NOTIFY, PRIVATE, 0, CONDITION_LOCK),
        # The lock of the condition, at the end.
        (WAIT, EXIT, PRIVATE, CONDITION, FUTEX_ADDRESS),
        (("wait", "/srv/a.py"), NOTIFY, PRIVATE, CONDITION, FUTEX_ADDRESS),
    ],
)
def test_which_lock(
    made: HandMade, innermost: tuple[str, ...], waker: tuple[str, ...] | None, operation: int, first: int, lock: int
) -> None:
    def stack_in(name: str, file: str = THREADING) -> int:
        return made.stack((made.code(name, filename=file), 0, 0), (made.code("main", filename="/srv/a.py"), 0, 0))

    woken_by = {"waker": 1, "waker_stack": stack_in(*waker)} if waker else {}
    if waker:
        made.waker(101)
    story = Story.begin(made).run(MS)
    story.block(MS, stack=stack_in(*innermost), syscall=FUTEX, args=(FUTEX_ADDRESS, operation, first), **woken_by)
    story.run(MS).total()
    spans = built(made, 3).spans
    assert spans is not None
    assert spans["lock"][spans["state"] == ThreadState.OFF_CPU].tolist() == [lock]
