"""What is said of time that was lost: of which process how much, and from when on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.model.profile import Profile
from bpfprof.query.threads.losses import losses_of
from tests.unit.render.profiles import training_profile

MS = 1_000_000


def changed(profile: Profile, lost_ns: int = 0, cpu_ns: int = 0) -> Profile:
    """The first thread's wall time is longer than its account, and its process used more CPU time than its threads."""
    first, *rest = profile.threads
    pid = int(first.pid)
    used_ns = sum(thread.on_cpu_ns for thread in profile.threads if thread.pid == first.pid) + cpu_ns
    return replace(
        profile,
        threads=(replace(first, last_ns=first.first_ns + first.accounted_ns + lost_ns), *rest),
        info=replace(profile.info, usage={pid: (0, 0, used_ns, 0)}),
    )


@pytest.mark.parametrize(("lost_ns", "cpu_ns"), [(0, 0), (99 * MS, 0), (0, 99 * MS)])
def test_little_is_not_worth_a_word(lost_ns: int, cpu_ns: int) -> None:
    assert losses_of(changed(training_profile(), lost_ns, cpu_ns)) == []


@pytest.mark.parametrize(("lost_ns", "cpu_ns"), [(9000 * MS, 0), (0, 9000 * MS)])
def test_lost_time_and_threads_that_were_not_watched(lost_ns: int, cpu_ns: int) -> None:
    profile = changed(training_profile(), lost_ns, cpu_ns)
    (loss,) = losses_of(profile)
    assert (loss.pid, loss.lost_ns) == (int(profile.threads[0].pid), 9000 * MS) and 0.5 < loss.share < 1


def test_of_a_part_of_the_time_nothing_is_known() -> None:
    assert losses_of(replace(changed(training_profile(), 9000 * MS), filter_text=", only 1 s")) == []


def test_the_recorder_does_not_watch_all_of_its_own_threads() -> None:
    profile = changed(training_profile(), cpu_ns=9000 * MS)
    own = frozenset({int(profile.threads[0].pid)})
    assert losses_of(replace(profile, info=replace(profile.info, own_pids=own))) == []
