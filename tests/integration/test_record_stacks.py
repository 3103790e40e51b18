"""Python stacks of a recording: whose they are, names, lines and order, against what the programs say themselves."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.spans import ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    KINDS_OF_INTERPRETERS,
    PYTHON,
    PYTHON_FRAME,
    Folded,
    Target,
    bpfprof,
    collapsed,
    json_line,
    let_run,
    needs_root,
    program,
    recording,
    running,
    some_interpreters,
)
from tests.looks import Look

pytestmark = [
    needs_root,
    pytest.mark.skipif(not ALL_INTERPRETERS, reason="no CPython 3.6 to 3.15 under ~/.pyenv/versions or /usr/bin"),
]


# Time without a stack: no sample fell into it, it had just begun, waits of less than 100 us each, or there was no room.
STACKLESS = (
    *("[not sampled]", "[truncated: stack not taken]", "[short waits]"),
    "[truncated: stack lost, buffer full]",
)
# A wait that was under way as the recording began has no stack if it ends before it is looked at; nor does the watch of
# a thread begin before that. Both take some ms, and no longer by chance, but where the host takes the CPU just then.
LATE_US = 30_000
UNTOLD_US = 150_000  # of a second or more; what a thread waits for a CPU until it is seen is no part of it


def recorded(target: Target, path: Path, seconds: float, *options: str | int) -> Folded:
    """A recording of a running target, as collapsed stacks."""
    bpfprof("record", "-p", target.pid, "-d", seconds, "-o", path, *options)
    return collapsed(path)


def read(path: Path) -> Recording:
    with open(path, "rb") as file:
        return read_recording(file)


def python_frames(frames: tuple[str, ...]) -> list[tuple[str, int]]:
    """(qualified name, line) of the Python frames, marks left out."""
    found = [PYTHON_FRAME.fullmatch(frame) for frame in frames]
    return [(frame["name"], int(frame["line"] or 0)) for frame in found if frame]


# --- whole and true


@pytest.mark.gate
@pytest.mark.parametrize("python", list(ALL_INTERPRETERS.values()), ids=list(ALL_INTERPRETERS))
def test_deep_stacks_are_exact(python: str, tmp_path: Path) -> None:
    """700 frames of recursion, generators, coroutines, methods, lambdas: every name, every line, in order, always.

    One program sleeps and one burns below them.
    """
    untold_us, total_us = deep_times(python, tmp_path / "x.bpfprof", 1)
    assert all(untold_us[tid] < total_us[tid] for tid in total_us)


@some_interpreters
def test_deep_stacks_are_nearly_always_taken(python: str, tmp_path: Path, look: Look) -> None:
    def judge(times: int) -> None:
        untold_us, _ = deep_times(python, tmp_path / "x.bpfprof", times)
        assert max(untold_us.values()) < UNTOLD_US, untold_us

    look(judge)


def deep_times(python: str, path: Path, seconds: float) -> tuple[dict[str, int], dict[str, int]]:
    """By thread, in microseconds: (how long there was no stack, how long it was recorded). What there is is exact."""
    with running(python, program("deep.py")) as asleep, running(python, program("deep.py"), "--burn") as burning:
        targets = {"rest": json_line(asleep.first_line)["threads"], "burn": json_line(burning.first_line)["threads"]}
        # They fight for the GIL 1,500 times a second, with stacks of 34 KB: of so many some would not find room.
        folded = recorded(asleep, path, seconds, "-p", burning.pid, "--max-switches", 100)
    assert [len(threads) for threads in targets.values()] == [4, 4]
    own = {(leaf, tid): folded.of_thread(int(tid)) for leaf, threads in targets.items() for tid in threads}
    untold_us = {tid: exact(lines, targets[leaf][tid], leaf) for (leaf, tid), lines in own.items()}
    return untold_us, {tid: lines.total_us() for (_, tid), lines in own.items()}


def exact(folded: Folded, thread: dict[str, Any], leaf: str) -> int:
    """How long there was no stack, in microseconds; where there is one it is the true one."""
    true = [tuple(frame) for frame in thread["stack"]]
    assert true[-1] == (leaf, 0)
    untold_us = 0
    assert folded.lines
    for _, _, frames, weight in folded.lines:
        stack = python_frames(frames)
        if not stack:
            untold_us += weight * (frames[-1] != "[runqueue]")
            assert frames[0] in STACKLESS, f"{thread['name']}: {frames[0]} for {weight} us"
            continue
        assert [*stack[:-1], (stack[-1][0], 0)] == true, thread["name"]
    return untold_us


@some_interpreters
def test_threads_that_sleep_all_the_time(python: str, tmp_path: Path, look: Look) -> None:
    """They make no event at all, and still show where they wait, for all of the time."""
    reasons = {"sleep": {"sleep"}, "lock": {"lock"}, "event": {"lock"}, "pipe": {"pipe"}, "poll": {"poll"}}
    with running(python, program("sleepers.py")) as target:
        threads = json_line(target.first_line)["threads"]
        assert len(threads) == 40

        def judge(times: int) -> None:
            folded, unlike = recorded(target, tmp_path / "x.bpfprof", times), set()
            duration_us = folded.of_thread(target.pid).total_us()
            for tid, function in threads.items():
                mine = folded.of_thread(int(tid))
                assert mine.total_us(kind="off") == mine.total_us()
                # A thread's watch begins later than the main thread's: 40 threads take 10 ms.
                assert 0.8 * duration_us < mine.total_us() <= duration_us + LATE_US
                assert mine.total_us(function) == mine.total_us(), function
                assert function in {name for name, _ in python_frames(mine.lines[0][2])}
                found = {frames[-1] for _, _, frames, _ in mine.lines}
                expected = {f"[off-cpu: {reason}]" for reason in reasons[function.partition("_")[0]]}
                unlike |= {(function.partition("_")[0], *found)} if found != expected else set()
            assert not unlike

        look(judge)


@some_interpreters
def test_a_hang_after_many_waits_has_its_place(python: str, tmp_path: Path) -> None:
    """A thread that has switched so often that its stack was not taken when it began to wait for ever.

    Chance: of 4,000 switches at one a second some ten more than the first 50 have a stack, so the last one has one in 1
    of 400 runs; the test holds in that one, too.
    """
    path = tmp_path / "x.bpfprof"
    with running(python, program("hangs.py")) as target:
        with recording("-p", target.pid, "--max-switches", 1, "-d", 4, "-o", path) as recorder:
            target.tell("begin")
            assert target.answer() == "hangs\n"
            assert recorder.end(None).returncode == 0
        mine = collapsed(path).of_thread(target.pid)
    hung_us = sum(weight for _, _, frames, weight in mine.lines if frames[-1] == "[off-cpu: lock]")
    assert hung_us > 500_000
    assert mine.total_us("hangs", "off") >= 0.99 * hung_us


def without_stack_us(folded: Folded) -> int:
    lines = [(frames, us) for _, _, frames, us in folded.lines if frames[-1] != "[runqueue]"]
    return sum(us for frames, us in lines if frames[0] in STACKLESS)


@some_interpreters
def test_calls_of_c_show_the_python_function_that_made_them(python: str, tmp_path: Path, look: Look) -> None:
    """Also while the GIL is given away: the thread's own state is walked, not the one that holds the GIL."""
    with running(python, program("c_calls.py")) as target:
        threads = json_line(target.first_line)["threads"]

        def judge(times: int) -> None:
            folded = recorded(target, tmp_path / "x.bpfprof", 1.5 * times)
            for tid, function in threads.items():
                mine = folded.of_thread(int(tid))
                untold_us = sum(weight for _, _, frames, weight in mine.lines if frames[0] in STACKLESS)
                assert mine.total_us(function) + untold_us == mine.total_us(), function
                assert without_stack_us(mine) < UNTOLD_US
                # A thread that needs a CPU gets one within 1.5 s, however busy the machine is.
                assert mine.total_us(function, "cpu") > 10_000 or function == "sleep_by_ctypes"
                if function == "sleep_by_ctypes":
                    assert mine.total_us(kind="off") > 0.5 * mine.total_us()
                    assert any(frames[-1] == "[off-cpu: sleep]" for _, _, frames, _ in mine.lines)
                assert not {other for other in threads.values() if other != function} & mine.functions()

        look(judge)


def test_threads_that_never_ran_python_have_no_python_frame(tmp_path: Path) -> None:
    if importlib.util.find_spec("numpy") is None or shutil.which("cc") is None:
        pytest.skip("training_loop.py needs numpy and a C compiler")
    with running(PYTHON, program("training_loop.py")) as target:
        folded = recorded(target, tmp_path / "x.bpfprof", 2)
    by_name: dict[str, set[str]] = {}
    for _, thread, frames, _ in folded.lines:
        names = by_name.setdefault(thread.split()[1], set())
        names |= {frame for frame in frames if PYTHON_FRAME.fullmatch(frame) and ".py" in frame}
    assert by_name["allreduce"] == set() and by_name["peer"] == set()
    assert any(frame.startswith("DataLoader.load ") for frame in by_name["loader-0"])
    assert any(frame.startswith("train_step ") for frame in by_name["MainThread"])


# --- code objects that come and go


def churned_rows(read_back: Recording) -> dict[str, list[tuple[int, int]]]:
    """Function -> (from, to) of each sample and each wait, CLOCK_MONOTONIC."""
    source, found = StackSource(read_back), {}
    for rows in (read_back.samples, read_back.waits):
        for row in rows:
            end_ns = int(row["time_ns"])
            start_ns = end_ns
            if "blocked_ns" in (rows.dtype.names or ()):
                end_ns -= int(row["runqueue_ns"])
                start_ns = end_ns - int(row["blocked_ns"])
            for name in {frame.name for frame in source.frames(int(row["stack"]), int(row["status"]))}:
                found.setdefault(name, []).append((start_ns, end_ns))
    return found


def is_unnamed(frame: Frame) -> bool:
    """A code object that could not be read: its name is the reason, in brackets."""
    return frame.kind == FrameKind.PYTHON and frame.name.startswith("[")


@dataclass
class Churn:
    """A recording of code_churn.py, and what it says of its functions."""

    functions: dict[str, dict[str, int]]
    distinct_addresses: int
    recording: Recording


CHURNED = {name: path for name, path in KINDS_OF_INTERPRETERS.items() if name not in ("debian-3.11", "3.13t")}


@pytest.fixture(scope="module", params=list(CHURNED.values()), ids=list(CHURNED))
def churn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Churn:
    """1,000 code objects a second, each for about a millisecond."""
    path = tmp_path_factory.mktemp("churn") / "x.bpfprof"
    command = request.param, program("code_churn.py"), "--shortest", "0.5", "--longest", "1.5"
    with running(*command) as target, recording("-p", target.pid, "-r", 499, "-o", path) as recorder:
        let_run(target.pid, 3)  # of which samples tell shares to 1.5 %, one standard deviation
        done = recorder.end()
        assert done.returncode == 0, done.stderr
        truth = json_line(target.end())
    return Churn(truth["functions"], truth["distinct_addresses"], read(path))


def test_no_function_is_given_the_time_of_another(churn: Churn) -> None:
    """Addresses of code objects are used again at once; every sample and wait lies within its function's own call.

    A wait of which the kernel did not tell the end lasts until the next one: so many may end too late.
    """
    assert churn.distinct_addresses < len(churn.functions) / 2, "no address was used again: nothing was tested"
    found = churned_rows(churn.recording)
    named = [name for name in found if name.startswith("churn_")]
    wrong, late = [], []
    for name in named:
        assert name in churn.functions, f"{name} never existed"
        first_ns = churn.functions[name]["start_ns"]
        last_ns = first_ns + churn.functions[name]["wall_ns"]
        outside = [it for it in found[name] if not first_ns <= it[0] <= last_ns]
        wrong += [f"{name}: {len(outside)} of {len(found[name])} when another one ran"] if outside else []
        late += [name for begin_ns, end_ns in found[name] if begin_ns <= last_ns < end_ns]
    assert not wrong
    assert len(late) <= churn.recording.end["switches_untold"], late
    assert len(named) >= 100


def test_code_that_is_gone_has_its_name_and_lines(churn: Churn) -> None:
    profile = build_profile(churn.recording)
    cpu_ns = sleep_ns = unnamed_ns = 0
    for weight in profile.weights:
        frames = [profile.frames[frame] for frame in profile.stacks[weight["stack"]]]
        # What this file adds to 3.6 are the program's clocks.
        python = [it for it in frames if it.kind == FrameKind.PYTHON and not it.file.endswith("/sitecustomize.py")]
        leaf = python[-1] if python else Frame(FrameKind.PYTHON)
        if leaf.name in churn.functions:
            line = churn.functions[leaf.name]["line"]
            assert line <= leaf.line <= line + 4
        if is_unnamed(leaf):
            unnamed_ns += int(weight["total_ns"]) * (weight["state"] != ThreadState.RUNQUEUE)
        elif weight["state"] == ThreadState.ON_CPU and leaf.name.startswith("churn_0"):
            cpu_ns += int(weight["total_ns"])
        elif weight["state"] != ThreadState.ON_CPU and leaf.name.startswith("churn_sleep"):
            sleep_ns += int(weight["total_ns"])
    first_ns, last_ns = churn.recording.start["start_ns"], churn.recording.end["end_ns"]
    calls = {
        name: call
        for name, call in churn.functions.items()
        if first_ns <= call["start_ns"] + call["wall_ns"] and call["start_ns"] <= last_ns
    }
    longest_ns = max(call["wall_ns"] for call in calls.values())
    true_cpu_ns = sum(call["cpu_ns"] for call in calls.values())
    true_sleep_ns = sum(call["wall_ns"] - call["cpu_ns"] for name, call in calls.items() if "sleep" in name)
    print(f"cpu {cpu_ns / 1e9} of {true_cpu_ns / 1e9}, asleep {sleep_ns / 1e9} of {true_sleep_ns / 1e9}")
    print(f"unnamed {unnamed_ns / 1e9}, {churn.recording.end['codes_replaced']} replaced")
    # Calls at both edges are counted whole in the truth; CPU time between calls falls to a neighbour's sample (5 %).
    assert cpu_ns <= 1.05 * true_cpu_ns and sleep_ns <= 1.05 * true_sleep_ns  # which has time on the run queue, too
    assert cpu_ns + sleep_ns + unnamed_ns >= 0.9 * (true_cpu_ns + true_sleep_ns) - 2 * longest_ns
    assert cpu_ns + sleep_ns + unnamed_ns <= 1.05 * (true_cpu_ns + true_sleep_ns)
    assert unnamed_ns <= 0.02 * (true_cpu_ns + true_sleep_ns)


@pytest.fixture(scope="module", params=["3.8", "3.11", "3.13", "3.11 deep"])
def kinds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, dict[str, Any]]:
    """A recording of code_kinds.py, and what it says of its functions.

    "deep": the innermost frames never show that a code object was replaced.
    """
    path = tmp_path_factory.mktemp("kinds") / "x.bpfprof"
    version, *chosen = request.param.split()
    python = ALL_INTERPRETERS.get(version)
    if python is None:
        pytest.skip(f"no CPython {version}")
    with (
        running(python, program("code_kinds.py"), *chosen) as target,
        recording("-p", target.pid, "-r", 499, "-o", path) as it,
    ):
        let_run(target.pid, 2)
        done = it.end()
        assert done.returncode == 0, done.stderr
        return read(path), json_line(target.end())["functions"]


def test_every_kind_of_code_has_its_name_and_lines(kinds: tuple[Recording, dict[str, Any]]) -> None:
    recorded, functions = kinds
    source, unread, wrong = StackSource(recorded), 0, []
    found: Counter[str] = Counter()
    for row in recorded.samples:
        frames = source.frames(int(row["stack"]), int(row["status"]))
        unread += any(is_unnamed(frame) for frame in frames)
        for frame in frames:
            truth = functions.get(frame.name)
            if truth is not None:
                found[truth["kind"]] += 1
                first, last = truth["lines"]
                is_right = 0 <= int(row["time_ns"]) - truth["start_ns"] <= truth["wall_ns"]
                wrong += [] if is_right and first <= frame.line <= last else [(frame.name, frame.line)]
    print(f"{len(recorded.samples)} samples, {unread} unread, {found}")
    assert not wrong
    assert {kind for kind, count in found.items() if count > 10} == {it["kind"] for it in functions.values()}
    assert unread <= 0.02 * len(recorded.samples)


# --- tasks that come and go


@some_interpreters
def test_threads_and_children_that_come_and_go(python: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(python, program("fork_exec.py")) as target:
        with recording("-p", target.pid, "-o", path) as recorder:
            let_run(target.pid, 1, of_children=True)  # some 15 rounds
            done = recorder.end()
            assert done.returncode == 0, done.stderr
        truth = json_line(target.end())
    read_back, folded = read(path), collapsed(path)
    profile = build_profile(read_back)
    first_ns, last_ns = read_back.start["start_ns"], read_back.end["end_ns"]
    by_tid = {thread.tid: thread for thread in profile.threads}
    expected = {"threads": "thread_work", "forked": "forked_work", "spawned": "spawned_work"}
    for kind, function in expected.items():
        tasks = {
            int(tid): task
            for tid, task in truth[kind].items()
            if first_ns <= task["start_ns"] and task["end_ns"] <= last_ns
        }
        assert len(tasks) >= 3
        with_frames = 0
        for tid, task in tasks.items():
            assert tid in by_tid, f"{kind}: {tid} is missing"
            assert by_tid[tid].pid == (target.pid if kind == "threads" else tid)
            # The end is taken when join() or wait() returns. The task itself then still has its memory to give back,
            # and on a busy machine it waits for a CPU to do so.
            ran_ns = by_tid[tid].wall_ns - by_tid[tid].runqueue_ns
            assert ran_ns <= task["end_ns"] - task["start_ns"] + 50_000_000
            assert by_tid[tid].accounted_ns == pytest.approx(by_tid[tid].wall_ns, rel=0.01)
            with_frames += folded.of_thread(tid).total_us(function) > 0
        print(f"{kind}: {with_frames} of {len(tasks)} with frames")
        # A sample may miss 20 ms of work at 99 Hz; the waits in it do not. A spawned one may be gone before its
        # interpreter was found.
        assert with_frames >= (0.5 if kind == "spawned" else 0.9) * len(tasks), kind


def test_children_older_than_the_recording(tmp_path: Path) -> None:
    """Following a process means its children, also those that it has already."""
    with running(PYTHON, program("fork_exec.py")) as target:
        ready = json_line(target.first_line)
        folded = recorded(target, tmp_path / "x.bpfprof", 1)
    assert "forked_work" in folded.of_process(ready["forked"]).functions()
    assert "spawned_work" in folded.of_process(ready["spawned"]).functions()


@pytest.mark.gate
def test_no_subprocesses(tmp_path: Path) -> None:
    with (
        running(PYTHON, program("fork_exec.py")) as target,
        recording("-p", target.pid, "-o", tmp_path / "x.bpfprof", "--no-subprocesses") as recorder,
    ):
        let_run(target.pid, 0.5, of_children=True)  # some rounds, for each spawned Python has 60 ms and its start
        done = recorder.end()
    assert done.returncode == 0, done.stderr
    folded = collapsed(tmp_path / "x.bpfprof")
    assert {process for process, *_ in folded.lines} == {f"process python ({target.pid})"}
    assert "thread_work" in folded.functions()
    assert not {"forked_work", "spawned_work"} & folded.functions()


def test_no_stack_of_a_short_life_is_lost(tmp_path: Path) -> None:
    """A child can send a stack between the look at what was born and the look at the stacks."""
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "-o", path, "--", "sh", "-c", "for i in $(seq 150); do (true); sleep 0; done")
    with open(path, "rb") as file:
        recorded = read_recording(file)
    statuses = {recorded.start["status_texts"][str(status)] for status in np.unique(recorded.waits["status"])}
    assert len(recorded.processes) > 250
    assert recorded.end["lost"] == {} and "stack lost, buffer full" not in statuses


def test_an_empty_stack_says_why(tmp_path: Path) -> None:
    """Every stack without a Python frame carries a reason, or is whole: the interpreter before or after it runs any."""
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "-o", path, "--", PYTHON, program("short_lived.py"), "--seconds", "0.5")
    for _, _, frames, weight in collapsed(path).lines:
        # The last: a thread that ends has given its memory back, and only kernel frames are left.
        marks = ("[truncated: ", "[not sampled]", "[runqueue]", "[short waits]", "_start ", "clone3 ", "entry_")
        assert python_frames(frames) or frames[0].startswith(marks), weight
    assert np.all(read(path).samples["on_cpu_ns"] >= 0)
