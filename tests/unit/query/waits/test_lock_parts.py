"""Who held a lock in each part of the waits for it, against locks that are played and answers worked out by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.samples import LOCK_HOLDER_DTYPE
from bpfprof.query.waits.lock_parts import parts_of
from bpfprof.query.work.table import LOCK_WAIT_DTYPE
from tests.unit.render.profiles import MS, ProfileBuilder

THREADS = 5
TIMER = THREADS + 1
UNIT = 10 * MS


def profile_of(*looks: tuple[int, int, int]) -> Profile:
    """Threads whose wakers have the numbers from 1 on, and a timer. looks: (from when, who waits, who holds)."""
    made = ProfileBuilder()
    for thread in [made.thread(100 + number) for number in range(THREADS)]:
        made.thread_waker(thread)
    made.waker("timer")
    rows = [(at * UNIT, at * UNIT + MS, waiter, holder + 1, 0) for at, waiter, holder in looks]
    return replace(made.build(), lock_holders=np.array(rows, LOCK_HOLDER_DTYPE))


def holders(
    profile: Profile, waits: list[tuple[int, int, int, int]], gap: float = 0
) -> dict[tuple[int, int, int], int]:
    """(waiter, from, to) -> holder, -1: not known. waits: (waiter, from, to, waker's number), in units of time.

    gap: how much later waits begin than it is said.
    """
    rows = np.zeros(len(waits), LOCK_WAIT_DTYPE)
    for row, (thread, begin, end, waker) in zip(rows, sorted(waits)):
        row["thread"], row["start_ns"], row["duration_ns"], row["waker"] = (
            thread,
            round((begin + gap) * UNIT),
            round((end - begin - gap) * UNIT),
            waker,
        )
    holder, _, row, start_ns, ns = parts_of(profile, rows)
    keys = zip(rows["thread"][row].tolist(), (start_ns // UNIT).tolist(), ((start_ns + ns) // UNIT).tolist())
    return dict(zip(keys, (holder - 1).tolist()))


END = 100


def test_after_the_last_release_the_one_that_it_woke_has_it() -> None:
    waits = [(1, 0, 10, 1), (2, 5, END, 0), (3, 40, END, 0)]
    assert holders(profile_of(), waits) == {(1, 0, 10): 0, (2, 5, 10): 0, (2, 10, END): 1, (3, 40, END): 1}


def test_of_all_that_are_woken_the_one_that_does_not_wait_again_has_it() -> None:
    waits = [(1, 0, 10, 1), (2, 0, 10, 1), (2, 10, END, 0)]
    assert holders(profile_of(), waits)[2, 10, END] == 1
    both = [*waits, (1, 10, END, 0)]
    assert holders(profile_of(), both)[2, 10, END] == -1


def test_where_nobody_waited_in_between_nothing_is_known() -> None:
    waits = [(1, 0, 10, TIMER), (2, 20, 30, 4)]
    assert holders(profile_of(), waits) == {(1, 0, 10): -1, (2, 20, 30): 3}
    waits = [(1, 0, 10, 1), (2, 20, END, 0)]
    assert holders(profile_of(), waits) == {(1, 0, 10): 0, (2, 20, END): -1}


def test_all_that_wait_again_did_not_get_it() -> None:
    """From one wait of a loop to the next."""
    waits = [(1, 0, 10, 1), (2, 0, 10, TIMER), (2, 10, 20, TIMER), (3, 0, 10, TIMER), (3, 10, 20, 2)]
    found = holders(profile_of(), waits, 0.01)
    assert found == {(1, 0, 10): 0, (2, 0, 10): 0, (2, 10, 20): 1, (3, 0, 10): 0, (3, 10, 20): 1}
    waits = [(1, 0, 10, 1), (2, 0, 20, TIMER), (2, 20, 40, TIMER), (3, 0, 20, TIMER), (4, 40, 50, 4)]
    found = holders(profile_of(), waits, 0.01)
    # The third may have it after 20.
    assert found[2, 10, 20] == found[3, 10, 20] == 1 and found[2, 20, 40] == -1 and found[4, 40, 50] == 3


def test_who_got_it_without_being_woken_did_not_have_it_before() -> None:
    """The time of its wait ran out when the lock was given back."""
    waits = [(1, 0, 10, 1), (2, 0, 20, TIMER), (3, 0, 30, 3)]
    found = holders(profile_of(), waits)
    assert found == {(1, 0, 10): 0, (2, 0, 10): 0, (2, 10, 20): 1, (3, 0, 10): 0, (3, 10, 20): 1, (3, 20, 30): 2}


def test_what_was_read_in_the_process() -> None:
    waits = [(1, 0, 10, 1), (2, 20, END, 0), (4, 50, END, 0)]
    found = holders(profile_of((60, 2, 3)), waits)
    assert found == {(1, 0, 10): 0, (2, 20, END): 3, (4, 50, END): 3}
    assert holders(profile_of((5, 1, 3)), waits)[1, 0, 10] == 0, "who released it had it"
    assert holders(profile_of((15, 2, 3)), waits)[2, 20, END] == -1, "it did not wait then"


@dataclass
class Played:
    """A lock that threads fight for, at random; one step after the other."""

    draw: random.Random
    gives_up: bool
    holder: int = -1
    now: int = 0
    waiting: dict[int, int] = field(default_factory=dict)  # since when
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)
    held_by: list[int] = field(default_factory=list)  # in each step

    def play(self) -> None:
        for self.now in range(END):
            thread = self.draw.randrange(THREADS)
            if thread == self.holder:
                self.release()
            elif thread in self.waiting:
                if self.gives_up and self.draw.random() < 0.3:
                    self.end_wait(thread, TIMER)
            elif self.holder < 0:
                self.holder = thread
            else:
                self.waiting[thread] = self.now
            self.held_by.append(self.holder)
        for thread in [*self.waiting]:
            self.waits.append((thread, self.waiting[thread], END, 0))

    def release(self) -> None:
        giver, self.holder = self.holder, -1
        if self.waiting:
            woken = self.draw.choice([*self.waiting])
            self.end_wait(woken, giver + 1)
            self.holder = woken
            others = [it for it in range(THREADS) if it not in self.waiting and it != woken]
            if others and self.draw.random() < 0.3:  # another one takes it first
                self.holder = self.draw.choice(others)
                self.waiting[woken] = self.now

    def end_wait(self, thread: int, waker: int) -> None:
        self.waits.append((thread, self.waiting.pop(thread), self.now, waker))


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_holder_is_never_wrong(seed: int, gives_up: bool) -> None:
    played = Played(random.Random(seed), gives_up)
    played.play()
    waits = [it for it in played.waits if it[2] > it[1]]
    found = holders(profile_of(), waits)
    known = 0
    for (waiter, begin, end), holder in found.items():
        if holder >= 0:
            assert {*played.held_by[begin:end]} == {holder}, (waiter, begin, end)
            known += end - begin
    waited = sum(end - begin for _, begin, end, _ in waits)
    assert sum(end - begin for _, begin, end in found) == waited
    assert gives_up or not played.waiting or known > 0.5 * waited
