"""What the kernel side and the recording are told of a thread when it begins to be watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import bpfprof.capture.processes as processes_module
from bpfprof import abi
from bpfprof.abi.dtypes import EVENT_DTYPE, THREAD_DTYPE
from bpfprof.capture.inbox import Inbox
from bpfprof.capture.process import State
from bpfprof.capture.processes import Processes
from bpfprof.code.files import CodeFiles
from bpfprof.code.maps import NativeCode
from bpfprof.cpython.detect import ENDED
from bpfprof.kernel.tables import Tables
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.model.ids import Pid, Tid
from bpfprof.recording.contents import Recording
from bpfprof.recording.tables import RecordedProcess, RecordedThread


def watched(command: tuple[str, ...] = ()) -> tuple[Any, RecordedProcess, RecordedThread]:
    """(bp_thread, process, thread) of this very thread."""
    records: dict[int, bytes] = {}
    tables = SimpleNamespace(
        set_process=lambda *_: True, add_thread=lambda tid, record: not records.update({tid: record})
    )
    processes = Processes(cast(Tables, tables), None)
    processes.watch(Pid(os.getpid()), command)
    recording = Recording()
    processes.write_new(recording)
    processes.close()
    thread = recording.threads[processes.threads.index_of[os.getpid()]]
    return np.frombuffer(records[os.getpid()], THREAD_DTYPE, 1)[0], recording.processes[0], thread


def test_a_running_process_has_done_what_nobody_saw() -> None:
    record, process, _ = watched()
    assert record["state"] == abi.ThreadState["BP_THREAD_UNKNOWN"]
    assert process.name and process.command_line


def test_a_command_that_is_let_run_is_born_then() -> None:
    """It waits to be run for the first time and comes from no wait: that for its release was not its own."""
    before_ns = time.monotonic_ns()
    record, process, thread = watched(("/usr/bin/env", "true"))
    assert record["state"] == abi.ThreadState["BP_THREAD_RUNNABLE"] and record["status"] == abi.Status["BP_NOT_STARTED"]
    assert before_ns < record["first_ns"] == record["since_ns"] == thread.first_ns
    assert (process.name, process.command_line) == ("env", ["/usr/bin/env", "true"])


def test_a_row_that_says_nothing_new_is_not_written_again() -> None:
    """A program may execute itself 300 times a second."""
    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    processes, sizes = Processes(cast(Tables, tables), None), []

    class Sink:
        def write(self, kind: str, fields: dict[str, Any] | None = None, arrays: object = None) -> None:
            sizes.extend(len(str(row)) for row in (fields or {})["rows"] if kind == "processes")

    command = ["sh", "-c", "echo ready; read line", *["argument"] * 2000]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        pid = Pid(child.pid)
        processes.watch(pid)
        processes.write_new(Sink())
        count = len(sizes)
        for time_ns in range(100):
            processes.executed(pid, Tid(child.pid), time_ns)
            processes.write_new(Sink())
        child.communicate()
    processes.close()
    assert 0 < count <= 3 and len(sizes) == count and max(sizes) < 10_000


def test_of_programs_that_were_replaced_already_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that executes itself 1,000 times a second took five seconds of a drain, and of the end of a recording."""
    processes, asked = Processes(cast(Tables, SimpleNamespace(set_process=lambda *_: True)), None), []
    me = Pid(os.getpid())
    processes.born(me, Tid(me), Pid(0), 1000)
    process = processes.by_pid[me]
    monkeypatch.setattr(process, "open_memory", lambda: asked.append(me))
    codes = []
    for time_ns in range(2000, 2009):
        processes.executed(me, Tid(me), time_ns, has_replaced=True)
        codes.append(process.codes)
    assert not asked and len(set(map(id, codes))) == 9
    processes.executed(me, Tid(me), 2009)
    processes.close()
    assert asked


def test_after_a_long_look_a_process_rests_and_is_looked_at_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where events were lost, so that it is not known what it mapped."""
    now_s, looks = [1000.0], []

    def look_at(pid: Pid, *_: object) -> bool:
        looks.append(pid)
        now_s[0] += 0.2
        return False

    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    code = NativeCode(cast(CodeFiles, None), cast(UnwindMemory, None))
    monkeypatch.setattr(code, "look_at", look_at)
    processes, me = Processes(cast(Tables, tables), code), Pid(os.getpid())
    processes.watch(me)
    processes.by_pid[me].state = State.KNOWN
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    looks.clear()
    for _ in range(3):
        processes.remapped({me: []})
        processes.follow_time()
    assert looks == [me]
    now_s[0] += 11
    for _ in range(2):
        processes.follow_time()
    assert looks == [me, me]
    processes.close()


@pytest.mark.parametrize("heard", [("EXEC", "FORK"), ("FORK",), ("FORK", "EXEC")], ids=" ".join)
def test_a_child_is_looked_at_whatever_was_known_of_its_parent(
    heard: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was let run, and has become its program and forked before that was heard of; or a stranger."""
    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    code = NativeCode(cast(CodeFiles, None), cast(UnwindMemory, None))
    monkeypatch.setattr(code, "look_at", lambda *_: False)
    processes, me = Processes(cast(Tables, tables), code), Pid(os.getpid())
    is_known = heard[0] == "EXEC"
    if is_known:
        processes.watch(me, ("/usr/bin/env", "python3"))
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        events = np.zeros(len(heard), EVENT_DTYPE)
        events["kind"] = [abi.EventKind[f"BP_EVENT_{name}"] for name in heard]
        events["tgid"] = events["tid"] = [me if name == "EXEC" and is_known else child for name in heard]
        events["args"][:, 0] = me
        events["time_ns"] = range(1, 1 + len(heard))
        inbox = Inbox.__new__(Inbox)
        inbox._processes = processes
        inbox._follow_births(events)
        processes.follow_time()
        process = processes.by_pid[Pid(child)]
        assert process.recorded().parent_pid == me
        if heard[-1] == "EXEC":
            assert process.state is State.CHANGING
        else:
            assert process.interpreter is not None and process.state is State.KNOWN
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        processes.close()


@pytest.mark.parametrize(
    ("word", "name"), [("./a_long_program_name", "a_long_program_"), ("a\x1b[2Jb", "a[2Jb"), ("/bin/größe", "größe")]
)
def test_a_command_has_the_name_that_the_kernel_will_give_it(word: str, name: str) -> None:
    assert watched((word,))[1].name == name


def test_a_program_that_is_executed_between_the_first_look_and_the_watch_is_looked_at_anew() -> None:
    """Nobody tells of it: the kernel side does not know the process yet."""
    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    processes = Processes(cast(Tables, tables), None)
    script = "import os; os.read(0, 1); os.execv('/bin/cat', ['cat'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        pid = Pid(child.pid)
        while not processes.by_pid or processes.by_pid[pid].interpreter is None:
            processes.meet([pid])
        child.stdin.write(b"!it is here\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"it is here\n"  # of cat
        process = processes.watch(pid)
        assert (process.name, process.interpreter) == ("cat", None) and process.note
        child.stdin.close()
    processes.close()


def test_a_process_is_met_once_and_then_watched() -> None:
    told: list[int] = []
    tables = SimpleNamespace(set_process=lambda pid, *_: told.append(pid), add_thread=lambda *_: True)
    processes, me = Processes(cast(Tables, tables), None), Pid(os.getpid())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"all that it maps is there\n")
        child.stdin.flush()
        child.stdout.readline()
        processes.meet([me])
        assert not told and child.pid in processes.by_pid
        processes.watch_children(me)  # met, and yet to be watched
        assert told.count(child.pid) == 1
        child.stdin.close()
    processes.close()


def test_the_end_of_a_first_thread_is_not_the_end_of_who_goes_on_under_its_tid() -> None:
    """As after execve in another thread, or when the pid was given again; an end from before that is not its own."""
    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    processes = Processes(cast(Tables, tables), None)
    child = os.fork()
    if child == 0:
        signal.pause()
    pid = Pid(child)
    processes.born(pid, Tid(child), Pid(0), 1000)
    processes.ended(pid, 2000, "")
    assert pid in processes.by_pid  # it runs
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    processes.ended(pid, 999, "")
    assert pid in processes.by_pid
    processes.ended(pid, 2000, "")
    assert pid not in processes.by_pid
    os.waitpid(child, 0)


def test_a_child_is_looked_at_if_its_parent_had_ended_before_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon: the mappings were read while both parents lived, and nothing else of them."""
    tables = SimpleNamespace(set_process=lambda *_: True, add_thread=lambda *_: True)
    code = NativeCode(cast(CodeFiles, None), cast(UnwindMemory, None))
    monkeypatch.setattr(code, "look_at", lambda *_: False)
    processes = Processes(cast(Tables, tables), code)
    with subprocess.Popen(["true"]) as parent:
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # a zombie, whose end is not told yet
        processes.born(Pid(parent.pid), Tid(parent.pid), Pid(0), 1000)
        processes.exec_seen(Pid(parent.pid), 2000)
        processes.executed(Pid(parent.pid), Tid(parent.pid), 2000)
        assert processes.by_pid[Pid(parent.pid)].note == ENDED.reason
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        processes.born(Pid(child), Tid(child), Pid(parent.pid), 3000)
        processes.follow_time()
        process = processes.by_pid[Pid(child)]
        assert process.interpreter is not None and process.state is State.KNOWN and not process.note
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        processes.close()


def test_of_processes_that_are_gone_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that starts programs that live for a millisecond has 700 of them a second."""
    processes, recording = Processes(cast(Tables, SimpleNamespace(set_process=lambda *_: True)), None), Recording()
    with subprocess.Popen(["true"]) as child:
        pass
    pid, tid = Pid(child.pid), Tid(child.pid)
    asked: list[str] = []
    for name in ("process_name", "process_command_line", "thread_name", "process_rank", "namespace_pid", "parent"):
        monkeypatch.setattr(processes_module.tasks, name, lambda *_, name=name: asked.append(name))
    processes.gone.told([pid])
    processes.born(pid, tid, Pid(0), 1000)
    processes.exec_seen(pid, 2000)
    processes.executed(pid, tid, 2000)
    processes.threads.rename(tid, "true")
    processes.ended(pid, 3000, "true")
    processes.write_new(recording)
    row = recording.processes[0]
    assert (row.pid, row.name, row.command_line) == (pid, "true", []) and row.note == ENDED.reason
    assert [thread.name for thread in recording.threads] == ["true"]
    assert not asked and pid not in processes.by_pid


def test_a_pid_that_is_given_again_is_asked_for() -> None:
    """The end of the process before is told together with the birth of the one that has its pid now."""
    processes, recording = Processes(cast(Tables, SimpleNamespace(set_process=lambda *_: True)), None), Recording()
    with subprocess.Popen(["sleep", "60"]) as child:
        pid, tid = Pid(child.pid), Tid(child.pid)
        processes.gone.told([pid])
        for time_ns in (1000, 3000):
            processes.born(pid, tid, Pid(0), time_ns)
        processes.ended(pid, 2000, "before")
        processes.write_new(recording)
        child.kill()
    processes.close()
    assert [row.command_line for row in recording.processes][-1] == ["sleep", "60"] and pid in processes.by_pid
