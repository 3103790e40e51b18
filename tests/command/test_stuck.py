"""Programs that hang, each in another way: `dump`, `report` and `offcpu` agree on what is waited for, and who has it.

Nothing depends on time: a thread that hangs does so however busy the machine is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bpfprof.model.ids import Pid, Tid
from bpfprof.model.syscalls import syscall_name
from bpfprof.proc import tasks
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON, bpfprof, needs_root, program, recording, running
from tests.looks import Look

pytestmark = needs_root

# Kind -> what is said of it.
KINDS = {
    "killed_holder": "a lock, in killed_holder (stuck.py:{line}), since before the recording",
    "held_at_fork": "no other thread of its process is alive",
    "twice": "no other thread of its process is alive",
    "full_pipe": "which is full, in full_pipe (stuck.py:{line})",
    "own_pipe": "; no one else could write to it",
    "kept_output": ") has its other end",
    "unopened_fifo": "/orders to be opened, in unopened_fifo (stuck.py:{line})",
    "file_locked": " (deleted), in file_locked (stuck.py:{line})",
    "range_locked": " (deleted), in range_locked (stuck.py:{line})",
    "child": "for its child sleep (",
    "no_answer": "for 127.0.0.1:",
    "no_answer_select": "for 127.0.0.1:",
    "never_set": "in never_set (stuck.py:{line})",
    "empty_queue": "in empty_queue (stuck.py:{line})",
    "pool_killed": "what a pool of processes was given, in pool_killed (stuck.py:{line})",
    "pool_sleeps": "what a pool of processes was given, in pool_sleeps (stuck.py:{line})",
    "held": ") has it and sleeps in ",
    "stopped": "for being continued",
}
_TOGETHER = 4
HOLDERS = {"kept_output", "file_locked", "range_locked", "held", "child"}
# Others than the distribution's own are asked in the second tier.
PYTHONS = [
    pytest.param(path, id=name, marks=[] if name.startswith("debian") else pytest.mark.second_tier)
    for name, path in ALL_INTERPRETERS.items()
    if not name.endswith("t")  # a free-threaded one does not say who has a lock
]


@contextmanager
def stuck(python: str, kind: str) -> Iterator[int]:
    """Its pid, once it hangs."""
    with running(python, program("stuck.py"), kind) as target:
        pid = int(target.first_line.split()[1])
        if kind == "stopped":
            os.kill(pid, signal.SIGSTOP)
        else:
            wait_until_asleep(pid)
        yield pid


@pytest.fixture(scope="module", params=PYTHONS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """For each kind its recording, its pid and what `dump` says."""
    folder = tmp_path_factory.mktemp("stuck")
    with ExitStack() as programs:
        pids = {kind: programs.enter_context(stuck(request.param, kind)) for kind in KINDS}
        said = json.loads(bpfprof("dump", "-j", *pids.values()).stdout)["processes"]
        dumped = {process["pid"]: process for process in said}
        made: dict[str, Any] = {}
        # Some together: what is looked at when a recording ends has 2 seconds, on a busy machine too.
        for first in range(0, len(KINDS), _TOGETHER):
            part, path = [*KINDS][first : first + _TOGETHER], folder / f"{first}.bpfprof"
            bpfprof("record", *[word for kind in part for word in ("-p", pids[kind])], "-d", "1.5", "-o", path)
            made |= {kind: (path, pids[kind], dumped[pids[kind]]) for kind in part}
        yield made


def wait_until_in(pid: int, name: str) -> None:
    """Until its main thread sleeps in this call."""
    for _ in range(6000):
        call = tasks.blocked_syscall(Pid(pid), Tid(pid))
        if call is not None and call.number >= 0 and syscall_name(call.number) == name:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} is not in {name}()")


def line_of(kind: str) -> int:
    """The line that hangs is the only one of its function with this mark."""
    lines = Path(program("stuck.py")).read_text().splitlines()
    begin = lines.index(f"def {kind}():")
    return next(number for number, line in enumerate(lines[begin:], begin + 1) if line.endswith("# hangs"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_hangs_is_stuck_and_said_alike(kind: str, found: dict[str, Any]) -> None:
    path, pid, process = found[kind]
    report = json.loads(bpfprof("report", path, "--process", rf"\({pid}\)", "-f", "json").stdout)
    verdict = report["verdict"]
    assert verdict["bound"] == "stuck", verdict
    assert KINDS[kind].format(line=line_of(kind)) in verdict["sentence"], verdict
    (dumped,) = (thread for thread in process["threads"] if thread["tid"] == pid)
    (reported,) = (thread for thread in report["threads"] if thread["tid"] == pid)
    assert reported["stuck"] and process["deadlocks"] == []
    if kind != "stopped":
        wanted = reported["waits_for"]
        assert {name: wanted[name] for name in ("kind", "name")} == {
            name: dumped["waits_for"][name] for name in ("kind", "name")
        }
        assert (dumped["waits_for"]["held_by_pid"] is not None) == (kind in HOLDERS)
    said = bpfprof("offcpu", path, "--process", rf"\({pid}\)").stdout
    # A long path is broken where the line ends.
    assert "".join(verdict["sentence"].partition(". ")[0].rstrip(".").split()) in "".join(said.split())


# Kind -> how many threads wait for each other.
ACROSS = {
    **{"circle_of_processes": 2, "circle_of_files": 2, "pool_of_itself": 1, "child_writes": 2, "child_reads": 2},
    **{"unread_queue": 3, "silent_pair": 2},
}


@pytest.mark.parametrize("kind", ACROSS)
@pytest.mark.parametrize("python", [it for it in PYTHONS if it.id != "3.6"])  # whose queues of pools are not read
def test_deadlocks_of_other_things_than_locks_of_one_process(python: str, kind: str, tmp_path: Path) -> None:
    """`dump` of one process follows its waits into others; `report` says the same of a recording of both."""
    path = tmp_path / "x.bpfprof"
    with stuck(python, kind) as pid:
        for child in tasks.children(Pid(pid)):
            wait_until_asleep(child)
        (process,) = json.loads(bpfprof("dump", "-j", pid).stdout)["processes"]
        lines = bpfprof("dump", pid).stdout.splitlines()
        bpfprof("record", "-p", pid, "-d", "1", "-o", path)
    report = json.loads(bpfprof("report", path, "-f", "json").stdout)
    assert len(process["deadlocks"]) == 1
    assert [sorted(it) for it in process["deadlocks"]] == [sorted(it) for it in report["deadlocks"]]
    assert len(process["deadlocks"][0]) == ACROSS[kind]
    assert lines[0].startswith("DEADLOCK: ") and ("of process" in lines[0]) == (kind != "pool_of_itself")
    assert report["verdict"]["sentence"].startswith("Deadlocked: "), report["verdict"]


@pytest.mark.parametrize("python", [it for it in PYTHONS if it.id not in ("3.6", "3.7", "3.8", "3.9", "3.10")])
def test_tasks_that_wait_for_each_other_are_stuck(python: str, tmp_path: Path) -> None:
    """Their thread waits for work, as far as the kernel can tell. Tasks are read from CPython 3.11 on."""
    path = tmp_path / "x.bpfprof"
    with stuck(python, "tasks_locked") as pid:
        bpfprof("record", "-p", pid, "-d", "1.5", "-o", path)
    verdict = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
    assert verdict["bound"] == "stuck" and verdict["sentence"].startswith("Stuck: 2 tasks ("), verdict
    assert f"stuck.py:{line_of('tasks_locked')})" in verdict["sentence"], verdict


@pytest.mark.parametrize("python", [it for it in PYTHONS if it.id != "3.6"])  # which has no asyncio.run()
def test_an_event_loop_that_nothing_can_wake_is_stuck(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with stuck(python, "never_woken") as pid:
        (process,) = json.loads(bpfprof("dump", "-j", pid).stdout)["processes"]
        bpfprof("record", "-p", pid, "-d", "1.5", "-o", path)
    (thread,) = process["threads"]
    assert not thread["idle"] and thread["waits_for"]["kind"] == "poll", thread
    verdict = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
    assert verdict["bound"] == "stuck" and "no connection, timer, signal or other thread" in verdict["sentence"], (
        verdict
    )


@pytest.mark.parametrize("python", [it for it in PYTHONS if it.id != "3.6"])
def test_an_event_loop_that_has_asked_is_stuck(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with stuck(python, "asked") as pid:
        (process,) = json.loads(bpfprof("dump", "-j", pid).stdout)["processes"]
        bpfprof("record", "-p", pid, "-d", "2", "-o", path)
    (thread,) = process["threads"]
    assert not thread["idle"] and thread["waits_for"]["kind"] == "answer", thread
    verdict = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
    assert verdict["bound"] == "stuck" and "for 127.0.0.1:" in verdict["sentence"], verdict
    assert "it has asked, and nothing has come yet" in verdict["sentence"], verdict


@pytest.mark.parametrize("python", PYTHONS)
def test_the_gil_and_a_lock_of_c_are_a_deadlock(python: str, tmp_path: Path, look: Look) -> None:
    """Who wants the GIL looks again each 5 ms, and is awake in 1 of 500 looks: by chance 1 of 60,000 tests fails."""
    path = tmp_path / "x.bpfprof"

    def judge(times: int) -> None:
        with running(python, program("stuck.py"), "gil_and_mutex") as target:
            wait_until_in(target.pid, "futex")  # it says that it is ready before it waits
            said = bpfprof("dump", target.pid).stdout
            bpfprof("record", "-p", target.pid, "-d", times, "-o", path)
        assert said.startswith("DEADLOCK: MainThread -> worker -> MainThread\n"), said
        verdict = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
        assert verdict["sentence"].startswith("Deadlocked: MainThread -> worker -> MainThread"), verdict
        assert "GIL" in verdict["advice"], verdict

    look(judge)


def test_what_only_its_own_event_loop_or_server_could_answer(tmp_path: Path) -> None:
    said = {
        "loop_of_itself": "a future, in ",
        "own_server": "its own process has the other end, and no other thread",
        "in_its_thread": "a lock, for task Task-1, in ",
    }
    for kind, text in said.items():
        path = tmp_path / f"{kind}.bpfprof"
        with stuck(PYTHON, kind) as pid:
            bpfprof("record", "-p", pid, "-d", "2", "-o", path)
        report = json.loads(bpfprof("report", path, "--process", rf"\({pid}\)", "-f", "json").stdout)
        verdict = report["verdict"]
        assert verdict["bound"] == "stuck" and text in verdict["sentence"], verdict
        assert f"(stuck.py:{line_of(kind)})" in verdict["sentence"], verdict


AWAITS = {
    "a signal": "loop.add_signal_handler(signal.SIGTERM, event.set); await event.wait()",
    "a signal of Python": "signal.signal(signal.SIGHUP, lambda *_: event.set()); await event.wait()",
    "a time": "await asyncio.wait_for(event.wait(), 1e6)",
    "a connection": "server = await asyncio.start_server(print, '127.0.0.1', 0); await event.wait()",
    "a child's byte": "await loop.connect_read_pipe(asyncio.Protocol, open(os.pipe()[0], 'rb')); await event.wait()",
    "a thread": "threading.Timer(1e6, event.set).start(); await event.wait()",
}


@pytest.mark.parametrize("awaited", AWAITS)
def test_an_event_loop_that_something_can_wake_is_idle(awaited: str) -> None:
    source = (
        "import asyncio, os, signal, sys, threading\nasync def main():\n"
        "    loop, event = asyncio.get_running_loop(), asyncio.Event()\n"
        f"    loop.call_soon(print, 'ready', os.getpid()); loop.call_soon(sys.stdout.flush); {AWAITS[awaited]}\n"
        "asyncio.run(main())"
    )
    assert_idle(source)


ANSWERED = """import asyncio, os, socket, sys
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
if not os.fork():
    peer = server.accept()[0]
    peer.send(peer.recv(9))
    sys.stdin.read()
    os._exit(0)
async def main():
    reader, writer = await asyncio.open_connection(*server.getsockname())
    server.close()
    writer.write(b"x")
    await reader.read(1)
    print("ready", os.getpid(), flush=True)
    await reader.read()
asyncio.run(main())"""


@pytest.mark.parametrize("then", ["await reader.read()", "writer.write(b'acknowledged'); await reader.read()"])
def test_an_event_loop_that_was_answered_is_idle(then: str) -> None:
    """Also where it has spoken last, as who confirms messages has."""
    assert_idle(ANSWERED.replace("await reader.read()\nasyncio", f"{then}\nasyncio"))


SENDS_ONLY = ANSWERED.replace("    peer.send(peer.recv(9))\n", "").replace("    await reader.read(1)\n", "")


def test_an_event_loop_at_a_timer_is_idle_whatever_it_has_sent() -> None:
    assert_idle(SENDS_ONLY.replace("await reader.read()", "await asyncio.sleep(1e6)"))


def assert_idle(source: str) -> None:
    with running(PYTHON, "-c", source) as target:
        wait_until_asleep(target.pid)
        (process,) = json.loads(bpfprof("dump", "-j", target.pid).stdout)["processes"]
    (main,) = (thread for thread in process["threads"] if thread["tid"] == target.pid)
    assert main["idle"], main


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [("manager", "answered by process"), ("sqlite_busy", "held by process"), ("sqlite_own", "held by process")],
)
def test_who_answers_and_who_has_a_database(kind: str, said: str, python: str) -> None:
    with stuck(python, kind) as pid:
        wanted: list[int] = []
        while not wanted:  # who looks again and again runs at times
            (process,) = json.loads(bpfprof("dump", "-j", pid).stdout)["processes"]
            waits = [thread["waits_for"] or {} for thread in process["threads"] if thread["tid"] == pid]
            wanted = [it["held_by_pid"] for it in waits if it.get("held_by_pid")]
        assert wanted == (tasks.children(Pid(pid)) or [pid])
        assert kind != "manager" or said in bpfprof("dump", pid).stdout


def test_a_wait_that_began_before_has_its_waker_and_its_lock(tmp_path: Path) -> None:
    """Who ended the wait of a thread that had begun to wait before it was watched, and where that one was."""
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("stuck.py"), "released") as target:
        wait_until_asleep(target.pid)
        with recording("-p", target.pid, "-o", path) as recorder:
            target.tell("release")
            assert target.answer() == "released\n"
            recorder.end()
    rows = json.loads(bpfprof("report", path, "--by", "lock", "-f", "json").stdout)["rows"]
    holders = [holder for row in rows for holder in row["holders"]]
    assert [it["where"]["function"] for it in holders if it["where"]] == ["released"], rows


def test_a_launched_program_that_hangs_is_stuck(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "-d", "4", "--kill", "-o", path, "--", PYTHON, program("stuck.py"), "twice", check=None)
    verdict = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
    assert verdict["bound"] == "stuck" and ", for the last " in verdict["sentence"], verdict


@pytest.mark.second_tier
@pytest.mark.parametrize("kind", ["sqlite_busy", "filelock", "portalocker", "fasteners"])
def test_who_has_a_file_that_a_library_sleeps_for(kind: str, tmp_path: Path, look: Look) -> None:
    """It sleeps for 50 ms or more and a look takes some 10, which three looks in a row miss 1 time in 100."""
    path = tmp_path / "x.bpfprof"
    python = PYTHON if kind == "sqlite_busy" else sys.executable
    if kind != "sqlite_busy":
        pytest.importorskip(kind)

    def judge(times: int) -> None:
        with running(python, program("stuck.py"), kind) as target:
            _, pid, told = target.first_line.split(maxsplit=2)
            bpfprof("record", "-p", pid, "-d", 1.5 * times, "-o", path, check=None)
        ((tid, (_, holder)),) = json.loads(told)["waits"].items()
        report = json.loads(bpfprof("report", path, "-f", "json").stdout)
        (wanted,) = [it["waits_for"] for it in report["threads"] if it["tid"] == int(tid)]
        assert wanted and (wanted["kind"], wanted["held_by"].endswith(f"({holder})")) == ("file-lock", True), wanted
        verdict = report["verdict"]
        assert verdict["bound"] == "lock" and f"({holder}) has it at the end" in verdict["sentence"], verdict

    look(judge)


NAPS = """import ctypes, os, random, sqlite3, sys, tempfile, threading, time
path, reads = os.path.join(tempfile.mkdtemp(), "database"), os.pipe()
if not os.fork():
    other = sqlite3.connect(path, isolation_level=None)
    for text in ("PRAGMA journal_mode=WAL", "create table t(x)", "BEGIN IMMEDIATE"):
        other.execute(text)
    os.write(reads[1], b"x")
    sys.exit(sys.stdin.read())
os.read(reads[0], 1)
usleep = ctypes.CDLL("libc.so.6").usleep
def nap():
    random.choice([lambda: time.sleep(0.1), lambda: usleep(100_000), lambda: max([1], key=lambda _: time.sleep(0.1))])()
def work():
    own = sqlite3.connect(path, timeout=0, isolation_level=None)
    own.create_function("f", 1, lambda x: x)
    while True:
        list(own.execute("with recursive a(x) as (select 1 union all select x+1 from a limit 9) select f(x) from a"))
        try:
            own.execute("insert into t values (1)")
        except sqlite3.OperationalError:
            pass
        nap()
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
print("ready", os.getpid(), flush=True)
sys.stdin.read()"""


@pytest.mark.second_tier
def test_who_sleeps_beside_a_locked_database_does_not_wait_for_it() -> None:
    """SQLite leaves addresses of its code on the stack, of which 57 of 126 sleeps were once taken for its own."""
    with running(PYTHON, "-c", NAPS) as target:
        pid = target.first_line.split()[1]
        said = [json.loads(bpfprof("dump", "-j", pid).stdout)["processes"][0]["threads"] for _ in range(10)]
        target.end()
    sleeping = [thread for threads in said for thread in threads if thread["reason"] == "sleep"]
    assert len(sleeping) > 20 and not [thread["waits_for"] for thread in sleeping if thread["waits_for"]]


@pytest.mark.second_tier
@pytest.mark.parametrize("way", ["early", "launched"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stopped"])
def test_it_is_stuck_however_it_was_recorded(kind: str, way: str, tmp_path: Path) -> None:
    """Attached before it hangs, and launched: as attached late, above. Of a whole machine: tests/integration."""
    path, command = tmp_path / "x.bpfprof", [PYTHON, program("stuck.py"), kind]
    if way == "launched":
        said = bpfprof("record", "-d", "5", "--kill", "-o", path, "--", *command, check=None).stdout
        pid = int(said.partition("ready ")[2].split()[0])
    else:
        with running(*command, "later") as target, recording("-p", target.pid, "-d", "5", "-o", path) as recorder:
            target.tell("hang")
            pid = int(target.answer().split()[1])
            recorder.end(None)
    assert_stuck(kind, pid, path)


def assert_stuck(kind: str, pid: int, path: Path) -> None:
    report = json.loads(bpfprof("report", path, "--process", rf"\({pid}\)", "-f", "json").stdout)
    assert report["verdict"]["bound"] == "stuck", report["verdict"]
    said = KINDS[kind].format(line=line_of(kind)).partition(", since")[0]
    assert said in report["verdict"]["sentence"], report["verdict"]
    assert report["deadlocks"] == []
