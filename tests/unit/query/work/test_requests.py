"""What asyncio's tasks waited for while their event loop had nothing to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.ids import Pid
from bpfprof.model.profile import TASK_SPAN_DTYPE, Profile, Task
from bpfprof.model.spans import SpanFlag
from bpfprof.model.states import AWAIT_REASONS, reason_number
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.shares import IDLE, NET, OTHER, SLEEP
from bpfprof.query.work.table import work_of, worked_spans
from tests.unit.render.profiles import MS, ProfileBuilder, native, python, wait

LOOP = [python("run", "/usr/lib/python3.11/asyncio/runners.py", 190), native("epoll_wait", "libc.so.6"), wait("poll")]
SERVER = python("run_asgi", "/v/site-packages/uvicorn/protocols/http/h11_impl.py", 400)
HANDLER = python("nap", "/srv/app.py", 18)
LIBRARY = python("read", "/v/site-packages/httpcore/_backends/anyio.py", 32)


def service(*waits: tuple[int, int, int, str, tuple[Frame, ...]], loops: int = 1) -> Profile:
    """An event loop that idles for 2 s. waits: (task, from, to) in milliseconds, for what, the coroutines."""
    made = ProfileBuilder()
    for tid in range(100, 100 + loops):
        made.wait(made.thread(tid, "MainThread"), 2000 * MS, LOOP, flags=SpanFlag.IDLE)
    spans = np.zeros(len(waits), TASK_SPAN_DTYPE)
    for place, (task, begin, end, reason, frames) in enumerate(waits):
        spans[["task", "start_ns", "duration_ns", "stands_for_ns", "count"]][place] = (
            *(task, begin * MS, (end - begin) * MS, (end - begin) * MS),
            1,
        )
        spans["reason"][place] = AWAIT_REASONS.index(reason)
        spans["stack"][place] = made.stack((*frames, Frame(FrameKind.AWAIT, reason)))
    names = sorted({task for task, *_ in waits})
    tasks = tuple(Task(Pid(100), "python", f"Task-{number}") for number in names)
    return replace(made.build(), tasks=tasks, task_spans=spans)


# The server's own task, which is there all the time.
SERVES = (0, 0, 2000, "sleep", (python("serve", "/v/site-packages/uvicorn/server.py", 70),))


def shares(profile: Profile) -> dict[int, int]:
    """Milliseconds by share."""
    return {share: round(ns / MS) for share, ns in enumerate(work_of(profile).share_ns().tolist()) if ns}


def test_requests_that_wait_are_no_idle_time() -> None:
    """Two at once count once: it is the thread's time. They share it as they waited."""
    asks = (SERVER, HANDLER)
    profile = service(
        SERVES,
        *[(number, 100 * number, 100 * number + 300, "sleep", asks) for number in range(1, 11)],
        *[(number, 100 * number, 100 * number + 100, "socket", (SERVER, HANDLER, LIBRARY)) for number in range(11, 14)],
    )
    assert shares(profile) == {SLEEP: 1182, NET: 118, IDLE: 700}
    verdict = verdict_of(profile, work_of(profile))
    assert verdict.bound == "sleep" and verdict.where and verdict.where.name == "nap"


def test_spans_have_the_time_of_the_rows() -> None:
    """What the loop waited for requests is cut out of its idle spans, when they waited; all else stays as it was."""
    profile = service(SERVES, *[(it, 100 * it, 100 * it + 333, "sleep", (SERVER, HANDLER)) for it in range(1, 9)])
    work = work_of(profile)
    spans, is_idle = worked_spans(profile, work)
    assert spans["duration_ns"].sum() == spans["stands_for_ns"].sum() == 2000 * MS
    assert spans["stands_for_ns"][is_idle].sum() == work.share_ns()[IDLE]
    by_reason = dict(zip(spans["reason"].tolist(), spans["stack"].tolist()))
    frames = [profile.frames[frame].name for frame in profile.stacks[by_reason[reason_number("sleep")]]]
    assert frames[:2] == ["run_asgi", "nap"]
    assert (spans["start_ns"][1:] == (spans["start_ns"] + spans["duration_ns"])[:-1]).all()
    assert worked_spans(service(SERVES), work_of(service(SERVES)))[0].tolist() == service(SERVES).spans.tolist()


@pytest.mark.parametrize(
    ("reason", "frames", "share"), [("future", (SERVER, HANDLER), OTHER), ("lock", (HANDLER, LIBRARY), NET)]
)
def test_a_client_s_library_waits_for_a_server_whatever_it_is_made_of(
    reason: str, frames: tuple[Frame, ...], share: int
) -> None:
    assert shares(service(SERVES, (1, 500, 1000, reason, frames))) == {share: 500, IDLE: 1500}


@pytest.mark.parametrize(
    "waits",
    [
        (1, 0, 2000, "socket", (HANDLER,)),  # reads a connection, or asks now and then: it is there all the time
        (1, 500, 1800, "sleep", (HANDLER,)),
        (1, 500, 600, "queue", (HANDLER,)),  # waits for work
        (1, 500, 600, "sleep", (SERVER,)),  # of a library
    ],
    ids=["all the time", "long", "for work", "of a library"],
)
def test_what_is_no_request_idles(waits: tuple[int, int, int, str, tuple[Frame, ...]]) -> None:
    assert shares(service(SERVES, waits)) == {IDLE: 2000}


def test_a_task_that_asks_again_and_again() -> None:
    """It is there all the time; that it waits in a client's library says that it asked."""
    assert shares(service(SERVES, (1, 0, 1500, "future", (HANDLER, LIBRARY)))) == {NET: 1500, IDLE: 500}
    listens = python("PubSub.listen", "/v/site-packages/redis/asyncio/client.py", 900)
    assert shares(service(SERVES, (1, 0, 2000, "socket", (HANDLER, listens)))) == {IDLE: 2000}
    web = python("RequestHandler.start", "/v/site-packages/aiohttp/web_protocol.py", 500)
    assert shares(service(SERVES, (1, 0, 2000, "future", (web, HANDLER)))) == {IDLE: 2000}, "it serves"


def test_of_several_loops_it_is_not_known_whose_a_task_is() -> None:
    assert shares(service(SERVES, (1, 500, 600, "sleep", (HANDLER,)), loops=2)) == {IDLE: 4000}


READS = python("StreamReader.read", "/usr/lib/python3.11/asyncio/streams.py", 694)


def reads_streams(listens: bool, asks: bool, *frames: Frame, waits: int = 100) -> Profile:
    """A task waits for what comes from a socket, all the time; waits: of its loop, in 2 s."""
    profile = service(SERVES, (1, 0, 1500, "socket", (HANDLER, *frames, READS)))
    info = replace(profile.info, listens={100: listens}, asks=frozenset([100] if asks else []))
    return replace(profile, info=info, threads=(replace(profile.threads[0], wait_count=waits),))


def test_who_sends_as_it_receives_and_is_connected_to_by_nobody_waits_for_answers() -> None:
    assert shares(reads_streams(listens=False, asks=True)) == {NET: 1500, IDLE: 500}


@pytest.mark.parametrize(
    ("listens", "asks", "frames", "waits"),
    [
        (True, True, (), 100),
        (False, False, (), 100),
        (False, True, (python("subscribe", "/srv/app.py", 3),), 100),
        (False, True, (), 3),
    ],
    ids=["a server", "only hears", "subscribed", "says now and then that it lives"],
)
def test_who_waits_for_what_others_say_idles(listens: bool, asks: bool, frames: tuple[Frame, ...], waits: int) -> None:
    assert shares(reads_streams(listens, asks, *frames, waits=waits)) == {IDLE: 2000}


@pytest.mark.parametrize(("asks", "expected"), [(True, {NET: 1000, IDLE: 1000}), (False, {IDLE: 2000})])
def test_a_task_of_wait_for_is_told_as_the_one_that_waits_for_it(asks: bool, expected: dict[int, int]) -> None:
    """Before CPython 3.12 it has asyncio's code alone. That it lives short says nothing then."""
    profile = service(
        SERVES,
        (1, 0, 2000, "task", (HANDLER,)),
        *[(n, 100 * n, 100 * n + 100, "socket", (READS,)) for n in range(2, 12)],
    )
    profile.task_spans["awaited_by"] = np.where(profile.task_spans["task"] >= 2, 1, -1)
    profile.task_spans["awaited_by_count"] = profile.task_spans["task"] >= 2
    info = replace(profile.info, listens={100: False}, asks=frozenset([100] if asks else []))
    profile = replace(profile, info=info, threads=(replace(profile.threads[0], wait_count=100),))
    assert shares(profile) == expected
    work = work_of(profile)
    assert not asks or verdict_of(profile, work).where == HANDLER
