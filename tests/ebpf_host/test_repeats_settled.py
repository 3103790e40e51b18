"""Code objects of a stack that repeats, when they have been the same for long: read now and then only."""

from __future__ import annotations

from tests.ebpf_host.host import CONFIG, CONSTANTS, Host
from tests.ebpf_host.sleeper import OFF_CPU, Sleeper, check_repeats

SETTLED_NS, LOOK_NS = CONSTANTS["BP_SETTLED_NS"], CONSTANTS["BP_SETTLED_LOOK_NS"]
SETTLING_WAIT_NS = 90_000_000  # below GOOD_FOR_NS


def settle(sleeper: Sleeper) -> int:
    """Waits with the same code objects for as long as it takes for them not to be looked at each time."""
    key = sleeper.wait()
    for _ in range(1 + SETTLED_NS // SETTLING_WAIT_NS):
        assert sleeper.wait(SETTLING_WAIT_NS) == key
    return key


def test_code_objects_that_are_always_the_same_are_not_looked_at_each_time(sleeper: Sleeper) -> None:
    key = check_repeats(sleeper)
    reads = sleeper.reads
    assert settle(sleeper) == key
    assert sleeper.wait(1000) == key and sleeper.walk_calls == 0 and sleeper.reads == reads - 8, "4, and their names"
    assert sleeper.wait(LOOK_NS) == key and sleeper.walk_calls == 0 and sleeper.reads == reads, "but after some time"


def test_code_that_takes_the_place_of_settled_code_is_seen_soon(sleeper: Sleeper) -> None:
    key = settle(sleeper)
    sleeper.code_seed += 1
    assert sleeper.wait(LOOK_NS // 2) == key, "not at once"
    other = sleeper.wait(LOOK_NS // 2)
    assert other not in (key, 0) and sleeper.walk_calls > 0
    sleeper.code_seed -= 1
    assert sleeper.wait() == key and sleeper.walk_calls > 0, "what is new is looked at each time"
    sleeper.code_seed += 1
    assert sleeper.wait() == other and sleeper.walk_calls > 0


def test_what_is_not_seen_at_once_is_counted_when_repeats_are_checked(sleeper: Sleeper, host: Host) -> None:
    """As many as would be taken for what was there."""
    names = "BP_COUNT_REPEATED", "BP_COUNT_REPEAT_WRONG"
    settle(sleeper)
    host.set_config(OFF_CPU | CONFIG["BP_CONFIG_CHECK_REPEATS"])
    repeated, wrong = (host.counter(name) for name in names)
    sleeper.code_seed += 1
    for n in (1, 2, 3):
        sleeper.wait(1000)
        assert [host.counter(name) for name in names] == [repeated + n, wrong + n]
    sleeper.wait(LOOK_NS)
    assert [host.counter(name) for name in names] == [repeated + 3, wrong + 3]
