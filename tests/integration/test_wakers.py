"""Every kind of wait is ended by the right thread in the right function, or by the timer, a child or the disk.

The target is wait_kinds.py, which has a thread and a function of its own name for each. 95 % of the time is asked for,
without the waits that are too short for a waker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile, Waker
from bpfprof.model.states import reason_text
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.work.waits import find_waits
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import SOME_INTERPRETERS, json_line, needs_root, program, recording, running

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        not SOME_INTERPRETERS, reason="no CPython 3.11, 3.12, 3.13 or 3.15 under ~/.pyenv/versions or /usr/bin"
    ),
]
SHARE = 0.95
LEAST_NS = 100_000  # what bpfprof calls short by itself; below it are other waits of these functions, such as a queue's
# Single pages of a fast disk come in 50 to 150 us: on some machines none is slower than what is short by itself.
MIN_BLOCK_US = 10
PAGE_NS = 40_000  # a wait is as long as --min-block without its waker when the wake-up came a little before
# Kind -> (thread, function that is in its stack, innermost Python function of it).
BY_THREADS = {
    "wait_lock": ("releaser", "release_lock", "release_lock"),
    "wait_queue": ("feeder", "put_item", "Condition.notify"),
    "wait_flock": ("unlocker", "release_flock", "release_flock"),
    "wait_recv": ("sender", "send_bytes", "send_bytes"),
    "wait_socket_read": ("sender-r", "send_bytes", "send_bytes"),
    "wait_pipe": ("writer", "write_pipe", "write_pipe"),
    "wait_select": ("poker-s", "make_readable", "make_readable"),
    "wait_poll": ("poker-p", "make_readable", "make_readable"),
    "wait_epoll": ("poker-e", "make_readable", "make_readable"),
}
DISK = ("wait_fsync", "wait_disk_read", "wait_fault")


@dataclass(frozen=True)
class Ended:
    """What ended a wait, and how long the wait was."""

    ns: int
    waker: Waker | None
    functions: tuple[str, ...]  # Python functions of the waker, innermost last, without what they are nested in


@dataclass
class Woken:
    """All waits of each kind's thread that lie below the kind's function, but for waits for the GIL."""

    truth: dict[str, Any]
    profile: Profile
    pid: int

    def of(self, kind: str, least_ns: int = LEAST_NS) -> list[Ended]:
        profile = self.profile
        rows = find_waits(profile).rows
        tid = self.truth[kind]["tid"]
        thread = next(index for index, thread in enumerate(profile.threads) if thread.tid == tid)
        ended = []
        for row in rows[(rows["thread"] == thread) & (rows["blocked_ns"] >= least_ns)]:
            if reason_text(row["reason"]) != "gil" and kind in self._python(int(row["stack"])):
                waker = profile.wakers[row["waker"] - 1] if row["waker"] else None
                functions = self._python(int(row["waker_stack"]) - 1) if row["waker_stack"] else ()
                ended.append(Ended(int(row["blocked_ns"]), waker, functions))
        assert ended, f"no wait in {kind}"
        return ended

    def _python(self, stack: int) -> tuple[str, ...]:
        frames = (self.profile.frames[frame] for frame in self.profile.stacks[stack])
        return tuple(it.name.rpartition("<locals>.")[2] for it in frames if it.kind == FrameKind.PYTHON)


def known(ended: list[Ended]) -> list[Ended]:
    """Those whose waker was seen.

    The kernel side does not hear of each wake-up: often of all, at bad moments of a host one in three of a disk's was
    missing. What is known must be right.
    """
    found = [it for it in ended if it.waker]
    assert len(found) >= len(ended) // 2, f"{len(found)} of {len(ended)}"
    return found


def share(ended: list[Ended], right: list[bool]) -> float:
    return sum(it.ns for it, is_right in zip(ended, right) if is_right) / sum(it.ns for it in ended)


@pytest.fixture(scope="module", params=list(SOME_INTERPRETERS.values()), ids=list(SOME_INTERPRETERS))
def woken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Woken]:
    path: Path = tmp_path_factory.mktemp("wakers") / "x.bpfprof"
    with (
        running(request.param, program("wait_kinds.py"), "--seconds", "0.6") as target,
        recording("-p", target.pid, "--min-block", MIN_BLOCK_US, "-o", path) as recorder,
    ):
        target.tell("go")
        truth = json_line(target.answer())
        done = recorder.end()
        assert done.returncode == 0, done.stderr
        pid = target.pid
    with open(path, "rb") as file:
        profile = build_profile(read_recording(file), ProfileOptions(with_spans=True))
    yield Woken(truth, profile, pid)


@pytest.mark.parametrize("kind", BY_THREADS)
def test_a_thread_and_its_function(woken: Woken, kind: str) -> None:
    _, function, innermost = BY_THREADS[kind]
    ended = known(woken.of(kind))
    tid = woken.truth[kind]["waker_tid"]
    by_thread = [bool(it.waker and it.waker.tid == tid and it.waker.pid == woken.pid) for it in ended]
    in_function = [ok and function in it.functions for ok, it in zip(by_thread, ended)]
    # The queue's own lock is given back elsewhere in queue.Queue.put, a moment later: those are short waits.
    at_innermost = [ok and it.functions[-1] == innermost for ok, it in zip(in_function, ended)]
    shares = [share(ended, right) for right in (by_thread, in_function, at_innermost)]
    print(kind, len(ended), "waits; thread, function, innermost:", [f"{100 * it:.1f} %" for it in shares])
    assert min(shares) >= SHARE, [it for it, right in zip(ended, at_innermost) if not right][:5]


def test_names_of_wakers(woken: Woken) -> None:
    """They name themselves right after their birth, before they end any of these waits."""
    names = {kind: {it.waker.thread_name for it in woken.of(kind) if it.waker} for kind in BY_THREADS}
    assert names == {kind: {name} for kind, (name, _, _) in BY_THREADS.items()}


@pytest.mark.parametrize("kind", ["wait_pty_read", "wait_pty_write"])
def test_a_terminal(woken: Woken, kind: str) -> None:
    """The other end, or a kernel worker, which carries what is written from one end to the other."""
    ended = known(woken.of(kind))
    threads = {"wait_pty_read": ("typist",), "wait_pty_write": ("pty-reader",)}[kind]
    right = [bool(it.waker and it.waker.thread_name.startswith((*threads, "kworker"))) for it in ended]
    assert share(ended, right) >= SHARE, {it.waker for it in ended}


def test_sleep_ends_by_the_timer(woken: Woken) -> None:
    ended = known(woken.of("wait_sleep"))
    assert share(ended, [bool(it.waker and it.waker.kind == "timer") for it in ended]) >= SHARE


def test_a_child_ends_the_wait_for_it(woken: Woken) -> None:
    ended = known(woken.of("wait_child"))
    by_child = [bool(it.waker and it.waker.process_name == "sleep" and it.waker.pid != woken.pid) for it in ended]
    assert share(ended, by_child) >= SHARE, {it.waker for it in ended}


@pytest.mark.parametrize("kind", DISK)
def test_the_disk_ends_its_waits(woken: Woken, kind: str) -> None:
    """An interrupt, or a kernel thread that finishes what one began; never a thread of a program."""
    every = woken.of(kind, PAGE_NS)
    print(kind, Counter((it.waker.kind, it.waker.process_name) if it.waker else None for it in every))
    ended = known(every)
    by_kernel = [
        bool(
            it.waker
            and (it.waker.kind == "interrupt" or it.waker.process_name.startswith(("kworker", "jbd2", "ksoft")))
        )
        for it in ended
    ]
    assert share(ended, by_kernel) >= SHARE, {it.waker for it in ended}
