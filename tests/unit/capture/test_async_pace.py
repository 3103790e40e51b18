"""How often a process is looked at that has asyncio, but no tasks for now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bpfprof.capture import async_tasks
from bpfprof.capture.async_tasks import AsyncTasks
from bpfprof.cpython.asyncio_layouts import ASYNCIO_LAYOUTS

_RATE_HZ = 10
_STEP_S = 0.096


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(1e9 * self.now_s)


class Looked:
    """A process whose asyncio is known, that had tasks or not; `covered_s`: from when to when each look spoke."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.has_tasks, self.looks_s = Clock(), False, list[float]()
        self.covered_s: list[tuple[float, float]] = []
        monkeypatch.setattr(async_tasks, "time", self.clock)
        monkeypatch.setattr(async_tasks, "TaskTable", lambda _stacks: None)
        monkeypatch.setattr(async_tasks, "Objects", lambda *_: None)
        lists = SimpleNamespace(find=lambda: True, layout=object(), cut_count=0, is_other=False)
        monkeypatch.setattr(async_tasks, "TaskLists", lambda *_: lists)
        monkeypatch.setattr(async_tasks, "TaskReader", lambda *_: SimpleNamespace(look=self._look, torn_count=0))
        monkeypatch.setattr(async_tasks, "TaskRows", lambda *_: SimpleNamespace(add=self._add, finish=lambda: None))
        self.tasks = AsyncTasks(_RATE_HZ, self.clock.monotonic_ns(), stacks=None)  # type: ignore[arg-type]
        layout = SimpleNamespace(version=next(iter(ASYNCIO_LAYOUTS)))
        interpreter = SimpleNamespace(layout=layout, build="", runtime_address=0)
        self.process: Any = SimpleNamespace(index=1, pid=1, memory=object(), interpreter=interpreter)

    def _look(self) -> SimpleNamespace:
        self.looks_s.append(self.clock.now_s)
        return SimpleNamespace(views={1: None} if self.has_tasks else {})

    def _add(self, _look: object, begin_ns: int, end_ns: int) -> None:
        self.covered_s.append((begin_ns / 1e9, end_ns / 1e9))

    def go_on(self, seconds: float) -> None:
        end_s = self.clock.now_s + seconds
        while self.tasks.due_s <= end_s:
            self.clock.now_s = max(self.clock.now_s, self.tasks.due_s)
            self.tasks.look([self.process])
        self.clock.now_s = end_s


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


def test_without_tasks_looks_become_rare(looked: Looked) -> None:
    looked.go_on(30.0)
    gaps_s = [after - before for before, after in zip(looked.looks_s, looked.looks_s[1:])]
    assert gaps_s[0] < 0.2
    assert gaps_s[-1] == pytest.approx(0.5, abs=0.1)
    assert max(gaps_s) < 0.61


def test_with_tasks_they_are_as_often_as_asked(looked: Looked) -> None:
    looked.has_tasks = True
    looked.go_on(10.0)
    assert len(looked.looks_s) == pytest.approx(10 / _STEP_S, abs=2)
    ends_s = [end_s for _, end_s in looked.covered_s]
    assert [begin_s for begin_s, _ in looked.covered_s][1:] == pytest.approx(ends_s[:-1])


def test_the_first_task_is_taken_for_there_since_half_way_to_the_look_before(looked: Looked) -> None:
    looked.go_on(30.0)
    looked.has_tasks, before_s = True, looked.looks_s[-1]
    count = len(looked.looks_s)
    looked.go_on(2.0)
    first_s = looked.looks_s[count]
    assert looked.covered_s[count][0] == pytest.approx((before_s + first_s) / 2, abs=_STEP_S)
    rest_s = looked.looks_s[count:]
    assert rest_s[-1] - rest_s[-2] == pytest.approx(_STEP_S, abs=0.01)


def test_a_birth_is_looked_at_soon(looked: Looked) -> None:
    looked.go_on(30.0)
    looked.tasks.hurry()
    assert looked.tasks.due_s <= looked.clock.now_s + _STEP_S + 0.001


def test_rate_0_never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    never = AsyncTasks(0, 0, stacks=None)  # type: ignore[arg-type]
    never.hurry()
    assert never.due_s == float("inf")
