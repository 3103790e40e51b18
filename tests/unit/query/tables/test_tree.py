"""The tree of calls: what it shows of a stack, and that nothing of the time is lost or there twice."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.tables.choices import MERGES
from bpfprof.query.tables.tree import Tree, tree_of
from bpfprof.query.work.table import work_of
from tests.unit.recording.hand_made import FUTEX, START_NS, HandMade, Story, small
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    kernel,
    native,
    python,
    training_profile,
    wait,
    waiting_profile,
)

START = [native("_start", "/usr/bin/python3.11"), native("__libc_start_main")]
SERVER = [python(name, "/usr/lib/python3.11/wsgiref/handlers.py", 7) for name in ("run", "finish")]
GET = python("Queue.get", "/usr/lib/python3.11/queue.py", 171)
HELD = python("Condition.wait", "/usr/lib/python3.11/threading.py", 320)
DOT = python("dot", "/venv/lib/python3.11/site-packages/numpy/multiarray.py", 7)
BLAS = [native(name, "/usr/lib/libopenblas.so.0") for name in ("cblas_dgemm", "kernel_operation")]
FUTEX_CALL = [native("pthread_cond_wait"), kernel("futex_wait")]


def tree(profile: Profile, **options: object) -> Tree:
    return tree_of(profile, work_of(profile), **options)  # type: ignore[arg-type]


def calls(given: Tree, profile: Profile) -> list[str]:
    """The names of each path from below the root, with milliseconds of CPU, ready and wait; folded frames as `…N`."""
    found = []
    waiting = [(node, "") for node in given.root.sorted_children()]
    while waiting:
        node, before = waiting.pop(0)
        if node.wait:
            name = f"wait {node.wait[0]}"
        elif node.thread >= 0:
            name = given.threads.threads[node.thread].thread_name
        elif not node.frames:
            name = f"…{node.folded[1]} {','.join(node.libraries)}"
        else:
            frame = profile.frames[node.frames.most_common(1)[0][0]]
            name = frame.name + (f":{frame.line}" if frame.line else "") + f"+{node.folded[1]}" * (node.folded[1] > 0)
        path = f"{before}/{name}"
        found.append(f"{path} " + " ".join(str(ns // MS) for ns in node.ns))
        waiting = [(child, path) for child in node.sorted_children()] + waiting
    return found


def story() -> HandMade:
    """A recording of two threads that compute, wait and are ready; one of them also in the standard library."""
    made = HandMade(end={"end_ns": START_NS + 90 * MS})
    made.process()
    main, take = made.code("main"), made.code("Queue.get", filename="/usr/lib/python3.11/queue.py")
    step = made.code("step", filename="/srv/b.py")
    work = made.stack((step, 0, 0), (main, 0, 1))
    get = made.stack((take, 0, 0), (main, 0, 1))
    first = Story.begin(made)
    for _ in range(3):
        first.run(10 * MS, (5 * MS, work)).block(15 * MS, ready=5 * MS, stack=get, syscall=FUTEX)
    first.run(0).total()
    Story.begin(made, tid=101).run(60 * MS, (30 * MS, work)).preempt(20 * MS, work).run(10 * MS).total()
    return made


def of_recording(made: HandMade) -> Profile:
    return build_profile(made.recording(), ProfileOptions(with_spans=True))


MADE = [training_profile, waiting_profile, empty_profile, hostile_profile, deep_profile]
PROFILES = [*MADE, lambda: of_recording(story()), lambda: of_recording(small())]


@pytest.mark.parametrize("made", PROFILES)
@pytest.mark.parametrize("merge", ["", *MERGES])
@pytest.mark.parametrize("options", [{}, {"limit": 2}, {"unfolded": True}, {"with_idle": True}])
def test_what_is_shown_and_what_is_left_out_is_all_there_is(made, merge: str, options: dict[str, object]) -> None:
    profile = made()
    found = tree(profile, merge=merge, **options)
    spans = profile.spans
    assert spans is not None
    assert found.root.total_ns + sum(found.idle_ns.values()) == spans["stands_for_ns"][spans["state"] < 3].sum()
    assert not (found.idle_ns and options.get("with_idle"))
    together = [0, 0, 0]
    for node in found.nodes():
        children = [child.ns for child in node.children.values()]
        assert node.ns == [sum(parts) for parts in zip(node.own_ns, node.left_out_ns, *children)]
        assert (sum(node.left_out_ns) > 0) == (node.left_out_count > 0)
        together = [sum(parts) for parts in zip(together, node.own_ns, node.left_out_ns)]
    assert together == found.root.ns
    assert len([*found.nodes()]) <= 3 or options.get("limit") != 2


def test_the_same_as_the_summary_has() -> None:
    profile = training_profile()
    work = work_of(profile)
    cpu, ready, waits, idle = np.array(work.thread_kinds(len(profile.threads))).sum(axis=0).tolist()
    found = tree(profile)
    assert (found.root.ns, sum(found.idle_ns.values())) == ([cpu, ready, waits], idle)


def test_a_recording() -> None:
    profile = of_recording(story())
    assert calls(tree(profile), profile) == [
        "/main 30 15 45",
        "/main/main:1 30 15 45",
        "/main/main:1/Queue.get:1 0 15 45",
        "/main/main:1/Queue.get:1/wait 14 0 0 45",
        "/main/main:1/step:1 30 0 0",
        "/main 70 20 0",
        "/main/main:1 60 20 0",
        "/main/main:1/step:1 60 20 0",
        "/main/ 10 0 0",
    ]


def built(*stacks: list[Frame], threads: int = 1) -> Profile:
    """10 ms in each of the stacks, by its last frame."""
    made = ProfileBuilder()
    for number in range(threads):
        thread = made.thread(101 + number, f"w{number}")
        for stack in stacks:
            if stack[-1].kind == FrameKind.WAIT:
                made.wait(thread, 10 * MS, stack)
            else:
                made.spend(thread, RUNQUEUE if stack[-1] == READY else ON_CPU, 10 * MS, stack)
    return made.build()


def test_start_up_code_is_left_out_and_library_code_above_ones_own_is_one_line() -> None:
    profile = built([*START, *SERVER, python("view", line=3)], [*START, *SERVER, SERVER[0], python("view", line=4)])
    assert calls(tree(profile), profile) == ["/w0 20 0 0", "/w0/…5 wsgiref 20 0 0", "/w0/…5 wsgiref/view:3 20 0 0"]


def test_of_what_own_code_calls_the_first_function_is_named() -> None:
    on_cpu = [*START, python("view"), DOT, native("array_dot", "/a/numpy/umath.so"), *BLAS]
    waits = [*START, python("view"), GET, HELD, *FUTEX_CALL, wait("lock")]
    profile = built(on_cpu, waits)
    assert calls(tree(profile), profile) == [
        "/w0 10 0 10",
        "/w0/view 10 0 10",
        "/w0/view/dot:7+1 10 0 0",
        "/w0/view/dot:7+1/cblas_dgemm+1 10 0 0",
        "/w0/view/Queue.get:171+3 0 0 10",
        "/w0/view/Queue.get:171+3/wait 14 0 0 10",
    ]
    assert [path.split("/")[-1] for path in calls(tree(profile, unfolded=True), profile)] == [
        *("w0 10 0 10", "_start 10 0 10", "__libc_start_main 10 0 10", "view 10 0 10"),
        *("dot:7 10 0 0", "array_dot 10 0 0", "cblas_dgemm 10 0 0", "kernel_operation 10 0 0"),
        *("Queue.get:171 0 0 10", "Condition.wait:320 0 0 10", "pthread_cond_wait 0 0 10", "futex_wait 0 0 10"),
        "wait 14 0 0 10",
    ]


def test_what_the_interpreter_and_the_c_library_do_is_told_of_cpu_time_only() -> None:
    sort, sleep = native("list_sort", "/usr/bin/python3.11"), native("nanosleep")
    profile = built([python("f"), sort], [python("f"), sleep, kernel("do_nanosleep"), wait("net")])
    assert calls(tree(profile), profile) == [
        "/w0 10 0 10",
        "/w0/f 10 0 10",
        "/w0/f/list_sort 10 0 0",
        "/w0/f/wait 6 0 0 10",
    ]


def test_ones_own_code_called_by_a_library_stands_below_it() -> None:
    profile = built([python("f"), DOT, python("callback"), READY])
    assert calls(tree(profile), profile)[1:] == ["/w0/f 0 10 0", "/w0/f/dot:7 0 10 0", "/w0/f/dot:7/callback 0 10 0"]


def test_lines_of_a_function_and_recursion_are_one() -> None:
    profile = built([python("f", line=1), python("f", line=2), python("f", line=3)], [python("f", line=9)])
    assert calls(tree(profile), profile)[1:] == ["/w0/f:1 20 0 0"]


def test_a_program_without_own_code_is_shown_by_its_libraries() -> None:
    profile = built([*START, *SERVER, *BLAS[:1]])
    assert [path.split("/")[-1] for path in calls(tree(profile), profile)] == [
        *("w0 10 0 0", "run:7 10 0 0", "finish:7 10 0 0", "cblas_dgemm 10 0 0"),
    ]
    profile = built([python("f")], [*START, *SERVER])
    assert calls(tree(profile), profile)[2:] == ["/w0/…3 wsgiref 10 0 0", "/w0/…3 wsgiref/finish:7 10 0 0"]


def test_code_without_names_is_one_node() -> None:
    stripped = [native("", "/a/libx.so", offset) for offset in (1, 2)]
    profile = built([python("f"), stripped[0]], [python("f"), stripped[1]])
    assert [node.total_ns // MS for node in tree(profile).nodes()] == [20, 20, 20, 20]


@pytest.mark.parametrize(("threads", "nodes"), [(8, 8), (9, 1)])
def test_threads_of_a_role_are_one_when_there_are_many(threads: int, nodes: int) -> None:
    profile = built([python("f")], threads=threads)
    assert len(tree(profile).root.children) == nodes
    assert len(tree(profile, merge="none").root.children) == threads


def test_processes_stand_above_their_threads_if_there_are_several() -> None:
    made = ProfileBuilder()
    for pid, name in ((100, "serve"), (200, "serve"), (300, "other")):
        made.spend(made.thread(pid, "MainThread", pid=pid, process=name), ON_CPU, 10 * MS, [python("f")])
    profile = made.build()
    assert len(tree(profile).root.children) == 3
    merged = tree(profile, merge="role")
    labels = [merged.threads.threads[node.thread].process_id for node in merged.root.sorted_children()]
    assert sorted(labels) == ["2 processes", "300"]
    whole = tree(profile, merge="process").root.sorted_children()
    assert [[*node.children] for node in whole] == [[(0,)], [(0,)]], "no threads between a process and its functions"


def test_waits_for_work_are_apart_unless_asked_for() -> None:
    made = ProfileBuilder()
    thread = made.thread(1, "pool")
    made.spend(thread, ON_CPU, 10 * MS, [python("f")])
    made.wait(thread, 90 * MS, [GET, wait("lock")], flags=SpanFlag.IDLE)
    profile = made.build()
    assert dict(tree(profile).idle_ns) == {0: 90 * MS}
    assert "/pool/Queue.get:171/wait 13 0 0 90" in calls(tree(profile, with_idle=True), profile)
