"""What is under way when a recording ends, and what is left to look at, has a time, or until one more signal comes."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfprof.capture import ending as ending_module
from bpfprof.capture.async_tasks import AsyncTasks, _Watched
from bpfprof.capture.ending import Limit, after_asked, until
from bpfprof.capture.processes import Processes
from bpfprof.capture.sleeping import Sleeps
from bpfprof.capture.stacks import StackTable
from bpfprof.capture.stop import StopRequest
from bpfprof.code.background import Background
from bpfprof.code.namer import Namer
from bpfprof.kernel.tables import Tables
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory

NEVER_S = 1e9


def test_it_is_over_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(ending_module.time, "monotonic", lambda: now_s[0])
    is_over = until(102.0, cast(StopRequest, SimpleNamespace(count=1)))
    assert not is_over()
    now_s[0] = 102.0
    assert is_over()


def test_what_is_under_way_has_a_time_from_when_the_end_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = [100.0], [False]
    monkeypatch.setattr(ending_module.time, "monotonic", lambda: now_s[0])
    is_over = after_asked(lambda: asked[0], 0.5)
    assert not is_over()
    now_s[0], asked[0] = 200.0, True
    assert not is_over()
    now_s[0] = 200.5
    assert is_over()


def test_a_look_ends_at_the_next_read_wherever_it_is() -> None:
    """A program's structures may lead around for ever; what was found of other programs is kept."""
    reads = [0]

    def is_over() -> bool:
        reads[0] += 1
        return reads[0] > 3

    block, found, limit = ctypes.create_string_buffer(8), [], Limit(is_over)
    with ProcessMemory(Pid(os.getpid())) as memory:
        with limit.look():
            while True:
                found.append(memory.read_u64(ctypes.addressof(block)))
        assert found == [0, 0, 0] and limit.cut_count == 1
        assert memory.read_u64(ctypes.addressof(block)) == 0, "what follows has no limit"


def test_a_look_in_time_is_not_counted() -> None:
    limit = Limit(lambda: False)
    with limit.look():
        pass
    assert limit.cut_count == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_more_signal_ends_it(number: signal.Signals) -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)  # to this thread, not any of the process, which would act on it later
        assert stop.requested
        is_over = until(NEVER_S, stop)
        assert not is_over()
        signal.raise_signal(number)
        assert is_over() and is_over()


def test_names_are_waited_for_until_it_is_over() -> None:
    """A perf map of 500,000 lines takes a second, and a program may have hundreds of them."""
    naming = Background()
    files = SimpleNamespace(naming=naming, files=[], take_new=lambda: [])
    namer = Namer.__new__(Namer)
    namer.__dict__.update(code=SimpleNamespace(files=files), _written=[], _asked_count=0, _found=[])
    namer.natives = cast(Any, SimpleNamespace(take_new=lambda: []))
    looks = iter([False, False, True])
    ends: list[float] = []
    naming.add(0, lambda: ends.append(time.sleep(0.5) or time.monotonic()))
    namer.finish(cast(Any, None), lambda: next(looks))
    assert not ends and naming.open_count == 1
    assert naming.wait(60)
    naming.close()


def test_nothing_is_looked_at_any_more() -> None:
    """Neither tasks, nor sleeping threads, nor the names that processes have now."""
    processes = Processes(cast(Tables, SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)), None)
    process = processes.watch(Pid(os.getpid()))
    sleeps, tasks = Sleeps(processes.threads, StackTable(), None), AsyncTasks(20, 0, StackTable())
    asked: list[bool] = []

    def is_over() -> bool:
        asked.append(True)
        return True

    process.name = "before"
    sleeps.look_at(process, is_over=is_over)
    tasks.finish([process], is_over)
    processes.refresh_names(is_over)
    processes.close()
    assert len(asked) == 3 and not sleeps.seen and process.name == "before"


def test_tasks_are_looked_at_when_it_ends_whatever_a_look_costs() -> None:
    """On a busy machine looks are far apart. What a task does at the end says whether it hangs."""
    looks: list[tuple[int, int]] = []
    rows = SimpleNamespace(add=lambda _, begin_ns, end_ns: looks.append((begin_ns, end_ns)), finish=lambda: None)
    reader = SimpleNamespace(look=lambda: SimpleNamespace(views={}), torn_count=0)
    lists = SimpleNamespace(find=lambda: False, cut_count=0, is_other=False)
    layout = SimpleNamespace(version=(3, 11))
    memory = object()
    process = SimpleNamespace(index=0, memory=memory, interpreter=SimpleNamespace(layout=layout, build=""))
    never_s = float("inf")
    tasks = AsyncTasks(20, 0, StackTable())
    watched = _Watched(cast(Any, memory), cast(Any, lists), cast(Any, reader), cast(Any, rows), 5, never_s, never_s)
    tasks._watched[0] = watched
    now_ns = time.monotonic_ns()
    tasks.finish([cast(Any, process)], lambda: False)
    assert [begin_ns for begin_ns, _ in looks] == [5] and looks[0][1] >= now_ns
