"""A loop whose time goes into launching: how many launches there are, where they were counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.calls import CallFlag
from bpfprof.model.profile import PROFILE_CALL_DTYPE, Profile
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, native, python

TORCH = "/v/lib/python3.11/site-packages/torch"
MODULE = python("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1500)
ADAM = python("Adam.step", f"{TORCH}/optim/adam.py", 200)
LAUNCH = [native("at::native::add", f"{TORCH}/lib/libtorch_cuda.so"), native("cuLaunchKernel", "/usr/lib/libcuda.so.1")]
STEPS = 40  # of 50 ms each


def profile(flags: int = 0, other: int = 0) -> Profile:
    """The first and the last step are seen in part. other: launches of another process, which has no loop."""
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    made.thread(200, "MainThread", 200)
    for _ in range(STEPS):
        for line, library in ((12, MODULE), (12, MODULE), (12, MODULE), (13, ADAM), (13, ADAM)):
            made.spend(main, ON_CPU, 10 * MS, [python("train", line=line), library, *LAUNCH])
    counts = ((0, 0, 0, 449 * STEPS), (0, 1, flags, 7 * STEPS), (0, 2, 0, 1000), (1, 0, 0, other))
    calls = np.zeros(len(counts), PROFILE_CALL_DTYPE)
    for name, column in zip(("thread", "function", "flags", "count"), zip(*counts)):
        calls[name] = column
    calls["total_ns"] = 12_000 * calls["count"]
    names = ("cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync")
    built = made.build()
    info = replace(built.info, duration_ns=STEPS * 50 * MS)
    return replace(built, calls=calls, call_names=names, info=info)


def said(given: Profile) -> str:
    sentence = verdict_of(given, work_of(given)).sentence
    assert sentence.startswith("The host is late: ")
    return sentence.partition(": ")[2].partition(";")[0]


@pytest.mark.parametrize("flags", [CallFlag.INSIDE, CallFlag.OPEN, CallFlag.INSIDE | CallFlag.OPEN])
def test_launches_of_a_step_without_those_that_others_made(flags: int) -> None:
    assert said(profile(flags=flags)) == "449 launches of 12 us a step"


def test_launches_of_all_functions_are_added_up_and_those_of_other_processes_are_not_of_a_step() -> None:
    assert said(profile(other=90_000)) == "456 launches of 12 us a step"


@pytest.mark.parametrize(("other", "expected"), [(2, "8,980"), (449 * STEPS + 2, "8,981")])
def test_launches_of_a_second_where_steps_are_not_known_are_of_the_process_with_most(other: int, expected: str) -> None:
    given = profile(flags=CallFlag.INSIDE, other=other)
    assert said(replace(given, samples=given.samples[:0])) == f"{expected} launches of 12 us a second"


def test_launches_of_a_second_where_much_of_the_recording_is_of_no_step() -> None:
    given = profile(flags=CallFlag.INSIDE, other=90_000)
    longer = replace(given, info=replace(given.info, duration_ns=4_000 * MS))
    assert said(longer) == "4,490 launches of 12 us a second"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, ""), (2, "0.1"), (20, "0.5"), (397, "9.9"), (399, "10"), (400, "10")],
)
def test_few_launches_have_a_decimal_and_hardly_any_are_not_said(count: int, expected: str) -> None:
    given = profile(flags=CallFlag.INSIDE)
    given.calls["count"][0], given.calls["total_ns"][0] = count, 12_000 * count
    found = said(given)
    assert found == f"{expected} launches of 12 us a step" if expected else "it spends" in found


def test_of_a_part_of_the_time_no_launches_are_said() -> None:
    assert said(replace(profile(), is_of_window=True)).startswith("it spends 100% of the time telling the GPU what")


def test_where_no_launches_were_counted_none_are_said() -> None:
    given = profile()
    assert said(replace(given, calls=given.calls[2:3])).startswith("it spends 100% of the time telling the GPU what")
