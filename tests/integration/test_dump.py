"""`bpfprof dump`: what it says of threads that wait in known ways, against what the program says of itself."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpfprof.capture import now
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.model.ids import Pid
from bpfprof.model.now import ON_CPU, READY, WAITING
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    AS_NOBODY,
    ASKS_ALL,
    BPFPROF,
    KINDS_OF_INTERPRETERS,
    PYTHON,
    assert_told,
    bpfprof,
    completed,
    needs_root,
    program,
    running,
    skip_unless_nobody_can_run,
)
from tests.looks import Look

pytestmark = needs_root
PYTHONS = {name: path for name, path in ALL_INTERPRETERS.items() if name in ("3.8", "3.11", "3.13")}
WITH_LOCKS = [
    name for name in ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "sid-3.14", "sid-3.15") if ASKS_ALL or name != "3.9"
]
BLOCKED = program("blocked.py")
LOCKS = ("lock", "rlock", "condition", "queue", "event", "semaphore", "join", "pool_0")
REASONS = {
    **dict.fromkeys(LOCKS, "lock"),
    **dict.fromkeys(("flock", "fcntl"), "file-lock"),
    **dict.fromkeys(("sleep", "joined", "rlock holder", "timerfd", "deep"), "sleep"),
    **dict.fromkeys(("select", "poll", "epoll", "eventfd"), "poll"),
    **dict.fromkeys(("recv", "accept", "connect"), "net"),
    **dict.fromkeys(("pipe", "fifo", "opened fifo"), "pipe"),
    "fault": "pagefault",
    "child": "child",
}
MORE_LOCKS = (
    *("timed event", "barrier", "full queue", "unfinished queue", "simple queue", "timed queue", "future", "futures"),
    *("lock of processes", "event of processes", "timer", "sem_wait", "cond_wait", "mutex", "semop", "logs too"),
)
MORE_SLEEPS = "only time", "sched", "callback", "del", "decorated", "comprehension", "pause", "logs"
MORE_REASONS = {
    **dict.fromkeys(MORE_LOCKS, "lock"),
    **dict.fromkeys(MORE_SLEEPS, "sleep"),
    **dict.fromkeys(("queue of processes", "one way", "reads child", "full pipe", "msgrcv"), "pipe"),
    **dict.fromkeys(("both ways", "send", "udp", "datagrams", "local accept", "http"), "net"),
    **dict.fromkeys(("joins process", "waitid", "wait4", "pidfd"), "child"),
    **dict.fromkeys(("communicate", "timed recv", "timed accept", "selectors", "inotify"), "poll"),
    **dict.fromkeys(("asyncio", "socketserver"), "poll"),
    "terminal": "device",
}
MORE_IDLE = {"asyncio", "socketserver", "timed accept", "local accept", "timer", "timed queue"}
WAYS_TO_HOLD = "generator", "manager", "stack", "acquired rlock", "plain condition", "semaphore of processes"
IDLE = {"queue", "accept", "pool_0"}
THREAD_KEYS = "tid name state reason for_s idle holds_gil waits_for frames"


def threads_of(*arguments: str | int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one process of a dump, and its threads by name."""
    (process,) = json.loads(bpfprof("dump", "-j", *arguments).stdout)["processes"]
    return process, {thread["name"]: thread for thread in process["threads"]}


def frames_of(thread: dict[str, Any]) -> list[list[Any]]:
    """As a program says them."""
    return [[it["name"].rpartition(".")[2], it["file"], it["line"]] for it in thread["frames"]]


@dataclass
class Dumped:
    told: dict[str, Any]  # by the program
    process: dict[str, Any]
    threads: dict[str, Any]
    text: str
    pid: int


@pytest.fixture(scope="module", params=list(PYTHONS.values()), ids=list(PYTHONS))
def dumped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    folder = tmp_path_factory.mktemp("blocked")
    with running(request.param, BLOCKED, "all", env={"TMPDIR": str(folder)}) as target:
        process, threads = threads_of(target.pid)
        text = bpfprof("dump", target.pid).stdout
        yield Dumped(json.loads(target.first_line), process, threads, text, target.pid)
        target.end()


@pytest.mark.gate
def test_stacks_are_those_that_the_program_sees(dumped: Dumped) -> None:
    seen = {name: frames_of(thread) for name, thread in dumped.threads.items()}
    assert len(dumped.told["frames"]) >= 27
    assert {name: seen.get(name) for name in dumped.told["frames"]} == dumped.told["frames"]


@pytest.mark.gate
def test_what_they_wait_for(dumped: Dumped) -> None:
    threads = dumped.threads
    assert {name: threads[name]["reason"] for name in REASONS} == REASONS
    assert {thread["state"] for thread in threads.values()} == {"waiting"}
    assert all(threads[name]["idle"] for name in IDLE) and not threads["lock"]["idle"]
    assert not any(thread["holds_gil"] for thread in threads.values())
    flock, fcntl, sleeper = dumped.told["children"][1:], threads["fcntl"]["waits_for"], dumped.told["children"][0]
    assert [threads["flock"]["waits_for"]["held_by_pid"], fcntl["held_by_pid"]] == flock
    assert threads["child"]["waits_for"]["held_by_pid"] == sleeper
    assert threads["rlock"]["waits_for"]["held_by_tid"] == threads["rlock holder"]["tid"]
    assert threads["fifo"]["waits_for"]["name"].endswith("/fifo")
    assert threads["opened fifo"]["waits_for"]["name"].endswith("/unopened")
    assert dumped.process["deadlocks"] == []


@pytest.fixture(scope="module", params=[PYTHONS["3.8"], PYTHON], ids=["3.8", "own"])
def dumped_more(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    folder = tmp_path_factory.mktemp("blocked")
    env = {"TMPDIR": str(folder), "PYTHONWARNINGS": "ignore"}  # of forks beside threads
    with running(request.param, program("blocked_more.py"), env=env) as target:
        process, threads = threads_of(target.pid)
        yield Dumped(json.loads(target.first_line), process, threads, "", target.pid)
        target.end()


@pytest.mark.gate
def test_more_ways_to_wait(dumped_more: Dumped) -> None:
    """With those above more than seventy."""
    told, threads = dumped_more.told, dumped_more.threads
    assert told["frames"].keys() == MORE_REASONS.keys()
    assert {name: frames_of(threads[name]) for name in told["frames"]} == told["frames"]
    assert {name: threads[name]["reason"] for name in MORE_REASONS} == MORE_REASONS
    assert {name for name in MORE_REASONS if threads[name]["idle"]} >= MORE_IDLE
    assert not any(threads[name]["idle"] for name in ("http", "full queue", "mutex", "lock of processes", "send"))
    children = dict(zip(("joins process", "waitid", "wait4", "communicate", "reads child", "pidfd"), told["children"]))
    assert {name: threads[name]["waits_for"]["held_by_pid"] for name in children} == children
    assert threads["pidfd"]["waits_for"]["name"] == f"process {children['pidfd']}"  # whose parent it need not be
    assert threads["logs too"]["waits_for"]["held_by_tid"] == threads["logs"]["tid"]
    # pthread_mutex_lock() of what it has locked itself.
    assert dumped_more.process["deadlocks"] == [[threads["mutex"]["tid"]]]


@pytest.mark.gate
def test_keys_are_those_of_the_contract(dumped: Dumped) -> None:
    assert " ".join(dumped.process) == "pid title interpreter threads tasks deadlocks"
    assert {" ".join(thread) for thread in dumped.threads.values()} == {THREAD_KEYS}
    lock = dumped.threads["lock"]
    assert " ".join(lock["waits_for"]) == "kind name held_by_tid held_by_pid"
    assert " ".join(lock["frames"][0]) == "name file line object kind"


@pytest.mark.gate
def test_the_text_tells_it_too(dumped: Dumped) -> None:
    assert f"({dumped.pid})" in dumped.text.splitlines()[0] and "DEADLOCK" not in dumped.text
    assert "held by rlock holder" in dumped.text and "rlock -> rlock holder" in dumped.text


@pytest.mark.gate
@pytest.mark.parametrize(("version", "count"), [*[(version, 3) for version in WITH_LOCKS], ("3.12", 2)])
def test_a_deadlock_comes_first(version: str, count: int) -> None:
    with running(ALL_INTERPRETERS[version], BLOCKED, "deadlock", str(count)) as target:
        process, threads = threads_of(target.pid)
        lines = bpfprof("dump", target.pid).stdout.splitlines()
        target.end()
    circles = {kind: [f"{kind} {number}" for number in range(count)] for kind in ("Lock", "RLock", "Condition")}
    assert process["deadlocks"] == sorted([threads[name]["tid"] for name in names] for names in circles.values())
    said = {"DEADLOCK: " + " -> ".join([*names, names[0]]) for names in circles.values()}
    assert set(lines[: len(circles)]) == said


@pytest.mark.gate
@pytest.mark.parametrize("version", WITH_LOCKS)
def test_who_holds_a_lock(version: str) -> None:
    with running(ALL_INTERPRETERS[version], BLOCKED, "holders") as target:
        children = json.loads(target.first_line)["children"]
        _, threads = threads_of(target.pid)
        target.end()
    wanted = threads["wants condition"]["waits_for"]
    assert wanted["held_by_tid"] == threads["holder"]["tid"], "not that of who waits for the condition"
    assert threads["wants lock"]["waits_for"]["held_by_tid"] is None, "acquire() leaves no trace"
    named = {thread["tid"]: name for name, thread in threads.items()}
    found = {name: named.get(threads[f"wants {name}"]["waits_for"]["held_by_tid"]) for name in WAYS_TO_HOLD}
    assert found == {name: f"holds {name}" for name in WAYS_TO_HOLD}
    of_child = threads["wants that of a child"]["waits_for"]
    assert [of_child["held_by_pid"], of_child["held_by_tid"]] == 2 * children
    joins = threads["joins ends"]["waits_for"]
    assert (joins["kind"], named[joins["held_by_tid"]]) == ("thread", "ends")


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that a dump takes, which is what it takes where others leave it a CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    bpfprof("dump", "-j", pid)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_of_many_threads_and_how_long_they_wait(look: Look) -> None:
    """Of 200 threads in less than a second of CPU time, 0.3 s; the process runs as before, and as stopped as it was."""
    with running(PYTHON, BLOCKED, "many", "200") as target:
        begin_s = time.monotonic()
        _, before = threads_of(target.pid)
        _, after = threads_of(target.pid)
        took_s = time.monotonic() - begin_s
        # Not known of a thread that the kernel moved to another CPU as it fell asleep: 1 in 10,000 beside other work.
        known = [name for name in before if None not in (before[name]["for_s"], after[name]["for_s"])]
        passed = [after[name]["for_s"] - before[name]["for_s"] for name in known]

        def judge(times: int) -> None:
            assert sum(cpu_s(target.pid) for _ in range(times)) < times

        look(judge)
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED)
        _, stopped = threads_of(target.pid)
        state = Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0]
        os.kill(target.pid, signal.SIGCONT)
        target.end()
    assert len(after) == 201 and all(thread["frames"] for thread in after.values())
    assert len(passed) >= 190
    assert all(0 < time_s < took_s for time_s in passed)
    assert state == "T" and {thread["reason"] for thread in stopped.values()} == {"stopped"}


VALUES = {
    **{"first": "1", "none": "None", "true": "True", "big": str(1 << 70), "negative": str(-(1 << 40)), "zero": "0"},
    **{"huge": "<5,010 bits>", "half": "0.5", "text": "'h\u00e9llo'", "evil": '"a\ufffd[31m\ufffd\ufffd\'"'},
    **{"long": f"'{'x' * 59}\u2026'", "data": repr(b"ab\x00\xff" * 5) + "\u2026", "items": "list of 3"},
    **{"pair": "tuple of 2", "table": "dict of 1", "some": "set of 2", "queue": "collections.deque of 1"},
    **{"color": "Color(3)", "sub": "Text('t')", "thing": "<Event>", "kind": "<class Text>"},
}


@pytest.mark.parametrize("python", list(KINDS_OF_INTERPRETERS.values()), ids=list(KINDS_OF_INTERPRETERS))
def test_local_variables_when_asked_for(python: str) -> None:
    with running(python, program("variables.py")) as target:
        wait_until_asleep(target.pid)  # it says that it is ready from another thread than that which falls asleep
        _, plain = threads_of(target.pid)
        _, threads = threads_of(target.pid, "--locals")
        text = bpfprof("dump", "--locals", target.pid).stdout
    assert not any("locals" in frame for thread in plain.values() for frame in thread["frames"])
    found = {frame["name"].rpartition(".")[2]: frame["locals"] for frame in threads["values"]["frames"][:3]}
    assert found["inner"] == {"d": "4", "e": "'x;y'", "b": "'x;y'", "c": "2"}
    cells = {"a": "1", "b": "'x;y'", "args": "tuple of 0", "key": "None", "more": "dict of 1", "inner": "<function>"}
    assert found["cells"] == {**cells, "c": "2"}
    assert found["values"] == VALUES
    module, body = threads["MainThread"]["frames"][-1]["locals"], threads["MainThread"]["frames"][-2]["locals"]
    assert body == {"attribute": "12"} and module["Color"] == "<class Color>" and "Body" not in module
    assert '        evil = "a' in text and "\x1b" not in text and "        b = 'x;y'" in text


MAIN_THREAD_ENDS = """
import ctypes, sys, threading
def left():
    while open("/proc/self/stat").read().split()[2] != "Z":
        pass
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=left, name="left").start()
ctypes.CDLL(None).syscall(60, 0)
"""


def test_threads_that_are_left_when_the_main_thread_has_ended() -> None:
    with running(PYTHON, "-c", MAIN_THREAD_ENDS) as target:
        wait_until_asleep(target.pid)
        process, threads = threads_of(target.pid)
        target.process.stdin.close()
    assert process["pid"] == target.pid and process["interpreter"]["name"] == "cpython"
    assert [*threads] == ["left"] and threads["left"]["frames"][0]["line"] == 7
    assert threads["left"]["reason"] == "pipe"


KEEPS_THE_GIL = """
import ctypes
source = "def accept(): print('ready', flush=True); poll(None, 0, 600_000)"
made = {"poll": ctypes.PyDLL(None).poll}  # does not give it back
exec(compile(source, "/usr/lib/python3/socket.py", "exec"), made)
made["accept"]()
"""


@pytest.mark.gate
def test_who_has_the_gil_is_not_idle_where_servers_are() -> None:
    with running(PYTHON, "-c", KEEPS_THE_GIL) as target:
        wait_until_asleep(target.pid)
        _, threads = threads_of(target.pid)
        text = bpfprof("dump", target.pid).stdout
    (keeper,) = threads.values()
    assert keeper["holds_gil"] and keeper["reason"] == "sleep" and keeper["frames"][0]["name"] == "accept"
    assert not keeper["idle"] and "holds the GIL" in text and "IDLE" not in text


TASKS = """
import asyncio, sys
async def inner():
    await asyncio.sleep(300)
async def outer():
    await asyncio.create_task(inner(), name="inner")
async def main():
    kept = asyncio.create_task(outer(), name="outer")
    await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    kept.cancel()
asyncio.run(main())
"""


def test_tasks_of_asyncio() -> None:
    with running(PYTHON, "-c", TASKS) as target:
        wait_until_asleep(target.pid)
        process, _ = threads_of(target.pid)
        text = bpfprof("dump", target.pid).stdout
    tasks = {task["name"]: task for task in process["tasks"]}
    assert {" ".join(task) for task in process["tasks"]} == {"name reason for_s waited_for_by frames"}
    assert [tasks[name]["reason"] for name in ("inner", "outer")] == ["sleep", "task"]
    assert tasks["inner"]["waited_for_by"] == "outer" and tasks["outer"]["frames"][0]["line"] == 6
    assert "task inner  sleep, waited for by outer" in text


@pytest.mark.gate
def test_who_sleeps_for_less_time_than_a_look_takes_sleeps_or_runs() -> None:
    """Of 50 looks 10 once fell between, and said that it waits for something unknown."""
    naps = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(1e-4)"
    with running(PYTHON, "-c", naps) as target:
        looks = [now.process_now(Pid(target.pid)).threads for _ in range(50)]
    found = {(look.state, look.reason) for (look,) in looks}
    assert found <= {(WAITING, "sleep"), (ON_CPU, ""), (READY, "")}, found


@pytest.mark.gate
def test_processes_that_are_not_there() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert_told(bpfprof("dump", child.pid, check=None), 4, "zombie")
    child.wait()
    assert_told(bpfprof("dump", child.pid, check=None), 4, "no process")
    assert_told(bpfprof("dump", 2, check=None), 4, "kernel")  # kthreadd
    assert_told(bpfprof("dump", check=None), 2, "dump PID")


@pytest.mark.gate
def test_one_who_may_not_read_it_is_told_what_is_missing() -> None:
    skip_unless_nobody_can_run()
    assert_told(completed([*BPFPROF, "dump", str(os.getpid())], None, **AS_NOBODY), 3, "CAP_SYS_PTRACE", "sudo")


@pytest.mark.gate
@pytest.mark.parametrize("python", KINDS_OF_INTERPRETERS)
@pytest.mark.parametrize("imported", ["sys", "asyncio"])
def test_of_tasks_that_are_not_read_only_a_program_with_asyncio_hears(python: str, imported: str) -> None:
    is_read = "sys.version_info >= (3, 11) and 't' not in sys.abiflags"
    code = f"import {imported}, sys; print({is_read}, flush=True); sys.stdin.read()"
    with running(ALL_INTERPRETERS.get(python, python), "-c", code) as target:
        said = bpfprof("dump", target.pid).stderr
    is_missed = imported == "asyncio" and "False" in target.first_line
    assert ("asyncio tasks of this CPython are not read" in said) == is_missed, said


def test_root_is_not_told_to_become_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TargetError("its memory cannot be read") from PermissionError()

    monkeypatch.setattr(now, "find_interpreter", refuse)
    monkeypatch.setattr(now, "missing", lambda _: [])
    with pytest.raises(UnsupportedError) as told:
        now.process_now(Pid(os.getpid()))
    assert "sudo" not in told.value.hint and f"record --pid {os.getpid()}" in told.value.hint
