"""Asyncio tasks of every CPython that is read, against what the program says of them; and while they change."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bpfprof.cpython.asyncio_layouts import ASYNCIO_LAYOUTS, described
from bpfprof.cpython.asyncio_lists import TaskLists
from bpfprof.cpython.asyncio_reading import TaskView
from bpfprof.cpython.asyncio_tasks import Look, TaskReader
from bpfprof.cpython.code_objects import CodeObject, read_code_object
from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.cpython.line_tables import LineTable
from bpfprof.cpython.objects import Objects
from bpfprof.model.ids import Pid
from bpfprof.model.samples import TaskState
from bpfprof.proc.memory import ProcessMemory
from tests.tiers import by_version
from tests.unit.cpython.test_thread_names import python_of

PROGRAM = Path(__file__).parents[2] / "programs" / "waiting_tasks.py"
# Coroutines that Python itself does not lead to: it stops at wrappers.
BEYOND_WRAPPERS = {"each_number", "of_generator", "of_object"}
AWAITED_BY = {
    **{f"gathered-{n}": ("gather", 1) for n in range(3)},
    **{f"grouped-{n}": ("group", 1) for n in range(2)},
    "waited": ("wait", 1),
    "shielded": ("shield", 1),
    "nap": ("task 0", 2),
}
CALLBACKS = {
    "executor": "_chain_future.<locals>._call_check_cancel",
    "thread": "_chain_future.<locals>._call_check_cancel",
    "shield": "shield.<locals>._outer_done_callback",
}


class Target:
    """A running program and all that is read of it."""

    def __init__(self, version: tuple[int, int], *arguments: str) -> None:
        pipe = subprocess.PIPE
        command = [python_of(version), "-W", "ignore", *arguments]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())
        self.memory = ProcessMemory(Pid(self.process.pid))
        self.interpreter = cast(Interpreter, find_interpreter(Pid(self.process.pid), self.memory))
        objects = Objects(self.memory, self.interpreter.layout)
        self.lists = TaskLists(Pid(self.process.pid), objects, self.interpreter.runtime_address)

    def reader(self) -> TaskReader:
        assert self.lists.find() and self.lists.layout is not None
        return TaskReader(self.lists, self.lists.layout)

    def frames(self, view: TaskView) -> list[list[object]]:
        found: list[list[object]] = []
        for address, instruction in view.frames:
            code = read_code_object(self.memory, self.interpreter.layout, address)
            assert isinstance(code, CodeObject)
            table = LineTable.decode(self.interpreter.layout.version, code.linetable, code.first_line)
            found.append([code.qualname, table.nearest_line(instruction - code.code_start)])
        return found

    def close(self) -> None:
        self.memory.close()
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture(params=by_version(ASYNCIO_LAYOUTS))
def version(request: pytest.FixtureRequest) -> tuple[int, int]:
    return cast("tuple[int, int]", request.param)


@pytest.fixture
def target(version: tuple[int, int]) -> Iterator[Target]:
    target = Target(version, str(PROGRAM))
    yield target
    target.close()


def by_name(reader: TaskReader, look: Look) -> dict[str, TaskView]:
    return {str(reader.name(view.name_at)): view for view in look.views.values()}


def test_tasks_are_those_of_the_program(target: Target, version: tuple[int, int]) -> None:
    reader = target.reader()
    look = reader.look()
    views = by_name(reader, look)
    assert views.keys() - {"Task-1"} == target.said.keys() and len(views) > 35
    names = {view.address: name for name, view in views.items()}
    for name, said in target.said.items():
        frames = target.frames(views[name])
        if name in BEYOND_WRAPPERS:
            assert frames[-len(said["frames"]) :] == said["frames"] and frames[1][0] == "nap", name
        else:
            assert frames == said["frames"], name
        assert reader.types.name(views[name].waiter_type).rpartition(".")[2] == said["waits_for"]
        assert views[name].state == TaskState.SUSPENDED
    found = {names[task]: (names[by], count) for task, (by, count) in look.awaited_by.items()}
    # wait_for() of 3.11 makes a task.
    assert [by for task, by in found.items() if task.startswith("Task-")] == [("with_timeout", 1)] * (version < (3, 12))
    found = {task: by for task, by in found.items() if not task.startswith("Task-")}
    # From 3.14 on the first callback of what is shielded is another one.
    expected = {task: by for task, by in AWAITED_BY.items() if version < (3, 14) or task != "shielded"}
    assert {**found, "nap": ("task 0", found["nap"][1])} == expected
    for name, function in CALLBACKS.items():
        code = read_code_object(target.memory, target.interpreter.layout, views[name].callback)
        assert isinstance(code, CodeObject) and code.qualname == function
    assert reader.torn_count == 0
    again = reader.look()
    assert all(again.views[address] is view for address, view in look.views.items())


CHANGING = """
import asyncio, random
async def leaf(n):
    await asyncio.sleep(n)
async def one(n):
    while True:
        await (leaf(n) if random.random() < 0.5 else asyncio.gather(leaf(n), leaf(n)))
async def main():
    tasks = [asyncio.create_task(one(random.random() / 100)) for _ in range(50)]
    await asyncio.sleep(0.1)
    print("{}", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


CHAINS = {("sleep", "leaf", "one"), ("one",), ("sleep", "leaf"), ("main",)}


def test_tasks_that_change_are_told_as_they_can_be(version: tuple[int, int]) -> None:
    target = Target(version, "-c", CHANGING)
    try:
        reader = target.reader()
        chains, deadline_s = set(), time.monotonic() + 60
        while chains != CHAINS and time.monotonic() < deadline_s:  # on a busy machine most change while they are read
            for view in reader.look().views.values():
                if view.state == TaskState.SUSPENDED:
                    chains.add(tuple(str(function) for function, _ in target.frames(view)))
    finally:
        target.close()
    assert chains == CHAINS


def test_a_program_without_asyncio_has_none(version: tuple[int, int]) -> None:
    target = Target(version, "-c", "print('{}', flush=True); input()")
    try:
        assert not target.lists.find() and target.lists.layout is None and not target.lists.is_other
    finally:
        target.close()


class Noise(Objects):
    """Some of what is read is anything."""

    chance = random.Random(7)

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(super().read(address, size))
        if data and self.chance.random() < 0.05:
            data[self.chance.randrange(len(data))] = self.chance.randrange(256)
        return bytes(data)


def test_damaged_lists_are_a_miss(target: Target) -> None:
    for _ in range(50):
        objects = Noise(target.memory, target.interpreter.layout)
        lists = TaskLists(Pid(target.process.pid), objects, target.interpreter.runtime_address)
        if lists.find() and lists.layout is not None:
            reader = TaskReader(lists, lists.layout)
            assert len(reader.look().views) <= 38


def test_a_description_that_disagrees_is_refused() -> None:
    known = ASYNCIO_LAYOUTS[3, 14]
    words = [168, known.task_name, 96, 108, 109, known.task_coroutine, 152, 300_000, 10880, 900, 864, 872, 880]
    found = described(known, bytes((ctypes.c_uint64 * 13)(*words)))
    assert found is not None
    assert (found.task_node, found.interpreter_tasks, found.thread_tasks) == (152, 10880, 880)
    for place, value in ((1, 8), (5, 8), (6, 1000), (8, 1 << 40)):
        other = [*words[:place], value, *words[place + 1 :]]
        assert described(known, bytes((ctypes.c_uint64 * 13)(*other))) is None
    assert described(known, b"") is None
