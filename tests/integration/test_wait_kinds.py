"""Every kind of wait has the right name and length: `wait_kinds.py` knows both, by the kernel's clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import (
    SOME_INTERPRETERS,
    Folded,
    json_line,
    needs_root,
    program,
    recording,
    running,
)
from tests.integration.schedstat import stolen_of_machine_ns

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        not SOME_INTERPRETERS, reason="no CPython 3.11, 3.12, 3.13 or 3.15 under ~/.pyenv/versions or /usr/bin"
    ),
]
REASONS = {
    "wait_sleep": "sleep",
    "wait_lock": "lock",
    "wait_queue": "lock",
    "wait_flock": "file-lock",
    "wait_recv": "net",
    "wait_socket_read": "net",
    "wait_pipe": "pipe",
    "wait_select": "poll",
    "wait_poll": "poll",
    "wait_epoll": "poll",
    "wait_child": "child",
    "wait_pty_read": "device",
    "wait_pty_write": "device",
    "wait_fsync": "disk",
    "wait_disk_read": "disk",
    "wait_fault": "pagefault",
}
# Single pages of a fast disk come in less than 100 us: those waits are added up for the whole thread.
# So do those of a terminal that is read in pieces.
MAY_BE_SHORT = ("wait_fsync", "wait_disk_read", "wait_fault", "wait_pty_write")
RELATIVE = 0.03
# A program cannot look at its clocks in the moment a wait begins and ends: the system call, a wait for the GIL after it
# and the clocks themselves lie between, some 10 us a wait on a busy host.
NS_A_WAIT = 20_000


@dataclass
class Recorded:
    """The program's account and the recording's."""

    truth: dict[str, Any]
    folded: Folded
    stolen_ns: int  # what the hypervisor and interrupts took of all CPUs meanwhile

    def elsewhere(self, kind: str) -> dict[tuple[str, ...], int]:
        """The longest of what its thread did in other places: stack -> microseconds."""
        lines = self.folded.of_thread(self.truth[kind]["tid"]).lines
        others = {frames: us for *_, frames, us in lines if not any(kind in frame for frame in frames)}
        return dict(sorted(others.items(), key=lambda item: -item[1])[:8])

    def microseconds(self, kind: str) -> dict[str, int]:
        """Leaf -> microseconds under the function, with the short waits of its thread where they may be its own."""
        leaves: dict[str, int] = {}
        for _, _, frames, weight in self.folded.of_thread(self.truth[kind]["tid"]).lines:
            # A wait whose beginning the kernel did not report, or that was not chosen to have a stack, has no function
            # either. With another reason it is one of the thread's other functions, such as dropping the pages.
            has_no_function = "[short waits]" in frames or frames[0].startswith("[")
            has_no_function &= frames[-1] in (f"[off-cpu: {REASONS[kind]}]", "[runqueue]")
            if (kind in MAY_BE_SHORT and has_no_function) or any(
                frame.rpartition(" (")[0].endswith(kind) for frame in frames
            ):
                leaf = frames[-1] if frames[-1].startswith(("[off-cpu", "[runqueue")) else "on cpu"
                leaves[leaf] = leaves.get(leaf, 0) + weight
        return leaves


@pytest.fixture(scope="module", params=list(SOME_INTERPRETERS.values()), ids=list(SOME_INTERPRETERS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    path: Path = tmp_path_factory.mktemp("waits") / "x.folded"
    stolen_ns = stolen_of_machine_ns()
    with (
        running(request.param, program("wait_kinds.py")) as target,
        recording("-p", target.pid, "-o", path) as recorder,
    ):
        target.tell("go")
        truth = json_line(target.answer())
        done = recorder.end()
        assert done.returncode == 0, done.stderr
    yield Recorded(truth, Folded.read(path), stolen_of_machine_ns() - stolen_ns)


@pytest.mark.parametrize("kind", REASONS)
def test_a_wait_has_its_name_and_length(recorded: Recorded, kind: str) -> None:
    """The truth has the time in the run queue after a wake-up in it, so the recording's is added to the waits.

    So it is with the GIL, which each takes back: who has it may be without a CPU for as long as a turn of others.
    """
    truth, leaves = recorded.truth[kind], recorded.microseconds(kind)
    named_us = leaves.get(f"[off-cpu: {REASONS[kind]}]", 0)
    queued_us = leaves.get("[runqueue]", 0) + leaves.get("[off-cpu: gil]", 0)
    print(f"{kind}: truth {truth['waited_ns'] / 1e3:.0f} us in {truth['rounds']} rounds, recorded {leaves}")
    print(f"  in all {truth['cpu_ns'] / 1e3:.0f} us of CPU time, elsewhere {truth['elsewhere_ns'] / 1e3:.0f} us")
    print(*recorded.elsewhere(kind).items(), f"stolen: {recorded.stolen_ns / 1e3:.0f} us", sep="\n  ")
    tolerance_us = RELATIVE * truth["waited_ns"] / 1e3 + NS_A_WAIT / 1e3 * min(truth["rounds"], 100)
    if kind in MAY_BE_SHORT:
        tolerance_us += abs(truth["elsewhere_ns"]) / 1e3  # short waits have no function
    tolerance_us += recorded.stolen_ns / 1e3  # which the truth has for waiting, as it is no CPU time
    assert abs(named_us + queued_us - truth["waited_ns"] / 1e3) <= tolerance_us, leaves
    assert named_us >= 0.9 * (truth["waited_ns"] / 1e3 - queued_us), leaves  # all of it, if no CPU was busy


def test_no_wait_is_called_something_else(recorded: Recorded) -> None:
    """Under these functions there is no other reason than the right one, but for the GIL, which each takes back."""
    wrong = {}
    for kind, reason in REASONS.items():
        right = ("on cpu", "[runqueue]", "[off-cpu: gil]", f"[off-cpu: {reason}]")
        other_us = {leaf: us for leaf, us in recorded.microseconds(kind).items() if leaf not in right}
        if sum(other_us.values()) > 0.01 * recorded.truth[kind]["waited_ns"] / 1e3:
            wrong[kind] = other_us
    assert not wrong
