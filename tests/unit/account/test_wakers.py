"""Who ended a wait, and what an interrupt was."""

from __future__ import annotations

from typing import Any

import pytest

from bpfprof.model.profile import Waker
from bpfprof.model.samples import WAITS_FOR_GIL, FdKind, WakerKind
from bpfprof.model.states import reason_text
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.query.work.waits import find_waits
from tests.unit.profile.views import built
from tests.unit.recording.hand_made import FUTEX, MS, HandMade, Story

INTERRUPT = WakerKind.INTERRUPT


def first_wait(made: HandMade, end_ms: float) -> tuple[str, Waker | None]:
    """Its reason and its waker."""
    profile = built(made, end_ms)
    row = find_waits(profile).rows[0]
    return reason_text(row["reason"]), profile.wakers[row["waker"] - 1] if row["waker"] else None


def test_a_thread_of_a_target_has_the_names_it_had_last(made: HandMade) -> None:
    Story.begin(made).run(MS).block(MS, waker=made.waker(1, 100, 101, "old"), waker_kind=WakerKind.THREAD).run(
        MS
    ).total()
    Story.begin(made, tid=101).run(3 * MS).total()
    assert first_wait(made, 3) == ("sleep", Waker("thread", 100, 101, "python", "main", 1)), (
        "its process had another, too"
    )


def test_a_thread_that_is_no_target(made: HandMade) -> None:
    daemon = made.waker(-1, 7, 8, "kworker")
    Story.begin(made).run(MS).block(MS, waker=daemon, waker_kind=WakerKind.THREAD).run(MS).total()
    assert first_wait(made, 3) == ("sleep", Waker("thread", 7, 8, "daemon", "kworker", -1))


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        ("nanosleep", (), "timer"),
        ("futex", (0x1000,), "timer"),
        ("epoll_wait", (3, 0x1000), "timer"),
        ("poll", (0x1000, 1, 10), "timer"),
        ("poll", (0x1000, 1, 500), "interrupt"),
        ("poll", (0x1000, 1, 0xFFFF_FFFF), "interrupt"),
        ("ppoll", (0x1000, 1), "timer"),
        ("select", (4, 0x1000), "timer"),
        ("pselect6", (4, 0x1000), "timer"),
        *[(call, (3,), "interrupt") for call in ("recvfrom", "wait4", "fsync", "ioctl")],
    ],
)
def test_what_an_interrupt_was(made: HandMade, call: str, args: tuple[int, ...], expected: str) -> None:
    values: dict[str, Any] = {"syscall": next(iter(syscall_numbers(call))), "args": (*args, 0, 0, 0)[:3]}
    Story.begin(made).run(MS).block(10 * MS, waker_kind=INTERRUPT, **values).run(MS).total()
    assert first_wait(made, 12)[1] == Waker(expected)


@pytest.mark.parametrize(("call", "kind"), [("poll", "timer"), ("ioctl", "interrupt")])
def test_a_device_that_is_waited_for_with_a_timeout(made: HandMade, call: str, kind: str) -> None:
    values: dict[str, Any] = {"syscall": next(iter(syscall_numbers(call))), "args": (0x1000, 1, 10)}
    story = Story.begin(made).run(MS).block(10 * MS, waker_kind=INTERRUPT, fd_kind=FdKind.DEVICE, **values)
    story.run(MS).total()
    assert first_wait(made, 12) == ("device", Waker(kind))


def test_a_timer_ends_no_wait_for_the_gil(made: HandMade) -> None:
    """What ended the last slice, which is too short for a row, is not known."""
    story = Story.begin(made).run(MS).block(5 * MS, syscall=FUTEX, flags=WAITS_FOR_GIL, waker_kind=INTERRUPT)
    story.run(1000).block_short(20_000, syscall=FUTEX, flags=WAITS_FOR_GIL).run(MS).total()
    assert first_wait(made, 7.021) == ("gil", None)
