"""Waits that went on after their thread was stopped and continued."""

from __future__ import annotations

import pytest

from bpfprof.model.syscalls import syscall_numbers
from bpfprof.profile.build import build_profile
from tests.unit.recording.hand_made import MS, START_NS, HandMade, Story

RESTART, SLEEP, POLL, FUTEX, READ = (
    next(iter(syscall_numbers(name))) for name in ("restart_syscall", "clock_nanosleep", "poll", "futex", "read")
)
STOPPED = 4


def reasons_ms(made: HandMade) -> list[dict[str, float]]:
    """Of each thread."""
    threads = build_profile(made.recording()).threads
    return [{reason: ns / MS for reason, ns in thread.off_by_reason} for thread in threads]


@pytest.fixture
def made() -> HandMade:
    """100 ms, two threads."""
    empty = HandMade(end={"end_ns": START_NS + 100 * MS})
    empty.process()
    return empty


def stopped_in(story: Story, syscall: int) -> Story:
    """Waits for 10 ms, is stopped for 20 ms."""
    story.run(MS).block(10 * MS, syscall=syscall, args=(0x7000, 1, 0))
    return story.run(MS).block(20 * MS, syscall=syscall, task_state=STOPPED)


@pytest.mark.parametrize(("call", "reason"), [(SLEEP, "sleep"), (POLL, "poll"), (FUTEX, "lock")])
def test_it_has_the_reason_of_the_call_it_goes_on_with(made: HandMade, call: int, reason: str) -> None:
    story = stopped_in(Story.begin(made), call).run(MS).preempt(MS)
    story.run(MS).block(5 * MS, syscall=RESTART, args=(0x7000, 1, 0)).run(60 * MS).total()
    Story.begin(made, tid=101).run(MS).block(99 * MS, syscall=READ).run(0).total()
    assert reasons_ms(made) == [{"stopped": 20, reason: 15}, {"syscall read": 99}]


def test_one_that_has_not_ended_too(made: HandMade) -> None:
    stopped_in(Story.begin(made), SLEEP).run(MS).block(67 * MS, syscall=RESTART).total()
    assert reasons_ms(made) == [{"sleep": 77, "stopped": 20}]


def test_after_another_call_it_is_not_known(made: HandMade) -> None:
    Story.begin(made).run(MS).block(99 * MS, syscall=SLEEP).total()
    stopped_in(Story.begin(made, tid=101), READ).run(MS).block(67 * MS, syscall=RESTART).total()
    Story.begin(made, tid=102).run(MS).block(99 * MS, syscall=RESTART).total()
    assert reasons_ms(made)[1:] == [
        {"syscall restart_syscall": 67, "stopped": 20, "syscall read": 10},
        {"syscall restart_syscall": 99},
    ]
