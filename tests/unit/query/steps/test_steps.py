"""Steps: which loop they are the turns of, where each begins, its phases, and when they are not counted."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.known.patterns import parse_phase
from bpfprof.model.frames import Frame
from bpfprof.model.profile import PROFILE_MARK_DTYPE
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.steps.loops import every_so_many
from bpfprof.query.steps.phases import find_phases
from bpfprof.query.steps.steps import CALLS, LOOP, MARKS, Steps, StepsWanted, find_steps
from bpfprof.query.steps.times import step_times
from bpfprof.render.formats import RenderOptions
from bpfprof.render.report_json import render_json
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait

TORCH = "/v/lib/python3.11/site-packages/torch"
LOADER = python("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py", 700)
MODULE = python("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1500)
TENSOR = python("Tensor.backward", f"{TORCH}/_tensor.py", 600)
ADAM = python("Adam.step", f"{TORCH}/optim/adam.py", 200)
TICK = 10 * MS  # about the time from sample to sample
HALF_MS = 5  # where a turn begins is told so exactly


class Loop:
    """The main thread of a made-up program."""

    def __init__(self) -> None:
        self.made = ProfileBuilder()
        self.thread = self.made.thread(100, "MainThread")

    def run(self, ticks: int, *stack: Frame) -> None:
        for _ in range(ticks):
            self.made.spend(self.thread, ON_CPU, TICK, stack)

    def wait(self, ns: int, *stack: Frame) -> None:
        self.made.spend(self.thread, OFF_CPU, ns, [*stack, wait("net")])

    def steps(self, **wanted: object) -> list[Steps]:
        return find_steps(self.made.build(), StepsWanted(**wanted))  # type: ignore[arg-type]


def train(line: int) -> Frame:
    return python("train", line=line)


def in_ms(steps: Steps) -> list[float]:
    return [ns / MS for ns in steps.durations_ns.tolist()]


def test_a_step_is_the_turn_in_which_the_optimizer_runs_once() -> None:
    """Not the turn of the accumulation within it, nor the epoch around it."""
    loop = Loop()
    for _ in range(4):
        for _ in range(5):
            loop.wait(7 * MS, train(11), LOADER)
            for _ in range(3):
                loop.run(2, train(13), MODULE)
                loop.run(3, train(14), TENSOR)
            loop.run(2, train(15), ADAM)
        loop.run(6, train(17), MODULE)
    (steps,) = loop.steps()
    assert steps.how == LOOP and steps.where == train(11)
    # The first was not seen to begin, the last not to end. The last of an epoch has what comes after it.
    assert in_ms(steps) == [*[177.0] * 3, 237.0, *[177.0] * 4, 237.0, *[177.0] * 4, 237.0, *[177.0] * 4]
    times = step_times(loop.made.build(), steps)
    first = dict(zip(steps.phases, (steps.phase_ns[0] / MS).tolist()))
    spent = {"data wait": 7, "forward": 60, "backward": 90, "optimizer": 20}
    assert {name: ns for name, ns in first.items() if ns} == pytest.approx(spent, abs=HALF_MS)
    assert times.all.p50_ns == 177 * MS and times.reader_ratio == pytest.approx(7 * 18 / (177 * 15 + 237 * 3), rel=0.02)
    slow = times.outliers[0]
    assert slow.step == 3 and [it.phase for it in slow.phases] == ["forward"]
    assert slow.phases[0].ns == pytest.approx(60 * MS, abs=HALF_MS * MS)
    assert slow.functions[0].function == MODULE and slow.functions[0].state == "cpu"


def test_data_that_comes_in_bursts_does_not_tell_steps() -> None:
    """Several loaders: of the batches that are ready one after another only the first was waited for."""
    loop, count = Loop(), 0
    for number in range(30):
        for turn in range((1, 3, 2, 1, 2)[number % 5]):
            if not turn:
                loop.wait(90 * MS, train(11), LOADER)
            loop.run(1, train(13), MODULE)
            loop.wait(8 * MS, train(14), TENSOR)
            count += 1
    (steps,) = loop.steps()
    assert count - 2 <= len(steps) <= count


def test_a_loop_that_makes_data_comes_after_the_one_that_it_is_for() -> None:
    loop = Loop()
    worker = loop.made.thread(200, "MainThread", 200, "pt_data_worker")
    makes = python("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 300)
    for _ in range(40):
        loop.wait(30 * MS, train(11), LOADER)
        loop.run(2, train(13), MODULE)
        loop.run(2, train(14), TENSOR)
        loop.made.spend(worker, ON_CPU, 50 * MS, [makes, python("load", line=5)])
        loop.made.spend(worker, OFF_CPU, 40 * MS, [makes, python("load", line=6), wait("disk")])
    found = loop.steps()
    assert found[0].thread == loop.thread


def test_a_turn_that_was_two_is_told_by_the_loop_within_it() -> None:
    """Neither waiting for data nor the optimizer was seen between the two."""
    loop = Loop()
    for number in range(24):
        if number != 6:
            loop.run(2, train(11), LOADER)
        for _ in range(2):
            loop.run(2, train(13), MODULE)
            loop.run(3, train(14), TENSOR)
        if number != 5:
            loop.run(2, train(15), ADAM)
    (steps,) = loop.steps()
    assert len(steps) == 22 and max(in_ms(steps)) == pytest.approx(140, abs=2 * HALF_MS)


def test_a_loop_of_one_line_is_told_by_the_lines_of_what_it_calls() -> None:
    loop = Loop()
    for _ in range(6):
        loop.run(2, train(11), python("advance", line=30), MODULE)
        loop.run(2, train(11), python("advance", line=31), TENSOR)
        loop.run(2, train(11), python("advance", line=33), ADAM)
    (steps,) = loop.steps()
    assert steps.where == python("advance", line=30) and in_ms(steps) == [60.0] * 4


def test_where_a_generator_goes_on_is_no_step() -> None:
    """It is left in each turn, and goes on at the line after."""
    loop = Loop()
    for _ in range(6):
        loop.run(2, train(11), python("losses", line=20), MODULE)
        loop.run(2, train(11), python("losses", line=21), TENSOR)
        loop.run(2, train(11), python("losses", line=22), ADAM)
        loop.run(2, train(12), python("log_metrics", line=50))
        loop.run(1, train(11), python("losses", line=24))
    (steps,) = loop.steps()
    assert {*in_ms(steps)} == {90.0} and len(steps) in (4, 5)


def test_turns_that_were_not_all_seen_are_not_counted() -> None:
    """A turn of 3 ms: samples are of one phase of one turn, then of any phase of a later one."""
    loop, chance = Loop(), random.Random(1)
    for _ in range(300):
        loop.run(1, *chance.choice([(train(11), MODULE), (train(12), TENSOR), (train(13), ADAM)]))
    (steps,) = loop.steps()
    assert not len(steps) and steps.unclear


def test_neither_are_those_of_a_loop_without_phases() -> None:
    loop, chance = Loop(), random.Random(1)
    for _ in range(300):
        loop.run(1, train(chance.choice([11, 12, 13])))
    (steps,) = loop.steps()
    assert not len(steps) and steps.unclear


def test_marks_are_steps_as_they_are() -> None:
    """Of one in another the outer; phases are those of the time in them."""
    loop = Loop()
    for _ in range(3):
        loop.run(1, train(11), MODULE)
        loop.run(2, train(12), TENSOR)
    marks = [(5, 10, 0), (8, 2, 0), (20, 30, 0), (21, 1, 1)]
    rows = np.zeros(len(marks), PROFILE_MARK_DTYPE)
    for name, place in (("start_ns", 0), ("duration_ns", 1)):
        rows[name] = [mark[place] * MS for mark in marks]
    rows["name"] = [mark[2] for mark in marks]
    profile = replace(loop.made.build(), marks=rows, mark_names=("step", "load"))
    (steps,) = find_steps(profile)
    assert steps.how == MARKS and steps.name == "step" and in_ms(steps) == [10, 30]
    spent = [dict(zip(steps.phases, of_step)) for of_step in (steps.phase_ns / MS).tolist()]
    assert [(it["forward"], it["backward"]) for it in spent] == [(5, 5), (10, 20)]
    (loads,) = find_steps(profile, StepsWanted(re.compile("load")))
    assert loads.name == "load" and in_ms(loads) == [1]


def test_programs_read_the_steps_of_the_first_loop() -> None:
    loop = Loop()
    for _ in range(6):
        loop.run(4, train(11), MODULE)
        loop.run(6, train(12), TENSOR)
        loop.run(2, train(13), ADAM)
    found = json.loads(render_json(loop.made.build(), RenderOptions(by="step")))
    steps, rows = found["steps"], found["rows"]
    assert (steps["found_by"], steps["where"]) == ("period", found["loops"][0]["where"])
    assert steps["count"] == len(rows) == 5
    assert steps["mean_s"] == steps["p50_s"] == pytest.approx(0.12) and steps["per_s"] == pytest.approx(1 / 0.12)
    names = ["data", "copy", "forward", "backward", "optimizer", "communication", "checkpoint", "log", "other"]
    assert [*steps["phases"]] == names and sum(steps["phases"].values()) == pytest.approx(steps["mean_s"])
    assert [row["index"] for row in rows] == [*range(len(rows))] and len(rows) >= 4
    assert all([*row["phases"]] == names and row["duration_s"] == pytest.approx(0.12) for row in rows)
    starts_s = [row["start_s"] for row in rows]
    assert starts_s == sorted(starts_s)


def test_a_loop_whose_steps_are_not_counted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    for _ in range(6):
        loop.run(4, train(11), MODULE)
        loop.run(6, train(12), TENSOR)
        loop.run(2, train(13), ADAM)
    (steps,) = loop.steps()
    none = steps.begin_ns[:0]
    empty = replace(steps, begin_ns=none, end_ns=none, phase_ns=steps.phase_ns[:0], unclear="no two turns are alike")
    for them, count in (([empty, steps], len(steps)), ([empty], None)):
        monkeypatch.setattr("bpfprof.render.steps.find_steps", lambda *_, them=them: them)
        found = json.loads(render_json(loop.made.build(), RenderOptions(by="step")))
        assert len(found["loops"]) == len(them) and (found["steps"] or {"count": None})["count"] == count
    assert found["why"] == "not counted: no two turns are alike"


def test_that_no_steps_are_counted_has_a_reason() -> None:
    loop = Loop()
    loop.run(100, train(11), MODULE)
    found = json.loads(render_json(loop.made.build(), RenderOptions(by="step")))
    assert found["steps"] is None and found["rows"] == [] and "was seen three times" in found["why"]


def test_waits_at_one_line_after_the_same_work_are_turns() -> None:
    """Of 4 ms of work each, which samples see now and then only."""
    loop = Loop()
    for number in range(60):
        loop.wait(3 * MS, train(11), LOADER)
        lines = [MODULE, TENSOR][number % 2]
        loop.made.spend(loop.thread, ON_CPU, 4 * MS, [train(12 + number % 2), lines], count=number % 3 == 0)
    (steps,) = loop.steps()
    assert len(steps) == 58 and in_ms(steps) == [7.0] * 58


def test_calls_of_a_function_are_steps_and_what_is_between_them_is_not() -> None:
    loop = Loop()
    for _ in range(5):
        loop.run(3, train(11), python("Model.fit", line=40), MODULE)
        loop.run(1, train(11), python("Model.fit", line=42), TENSOR)
        loop.run(2, train(12), python("report", line=50))
    (steps,) = loop.steps(function=re.compile("fit"))
    # The first may have begun before the recording.
    assert steps.how == CALLS and in_ms(steps) == [40.0] * 4
    assert loop.steps(function=re.compile("no such function")) == []


def test_a_program_without_phases_repeats_in_its_most_regular_loop() -> None:
    loop = Loop()
    for _ in range(8):
        loop.run(2, train(11), python("read", line=60))
        for _ in range(3):
            loop.run(2, train(13), python("parse", line=70))
            loop.run(2, train(14), python("check", line=80))
        loop.run(4, train(15), python("write", line=90))
    (steps,) = loop.steps()
    assert in_ms(steps) == [180.0] * 6


def test_a_program_that_repeats_nothing_has_no_steps() -> None:
    loop = Loop()
    for line in range(11, 40):
        loop.run(2, train(line), MODULE)
    assert loop.steps() == []


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ([ADAM, python("Closure.closure", line=3), MODULE], "forward"),
        ([TENSOR, python("CheckpointFunction.backward", f"{TORCH}/utils/checkpoint.py", 300), MODULE], "backward"),
        ([TENSOR, native("gloo::allreduce(gloo::AllreduceOptions&)", f"{TORCH}/lib/libtorch_cpu.so")], "communication"),
        ([TENSOR, native("c10d::Reducer::finalize_backward()", f"{TORCH}/lib/libtorch_cpu.so")], "communication"),
        ([TENSOR, native("c10d::Reducer::mark_variable_ready(int)", f"{TORCH}/lib/libtorch_cpu.so")], "backward"),
        (
            [TENSOR, native("c10d::ProcessGroupGloo::AsyncWork::wait()", f"{TORCH}/lib/libtorch_cpu.so")],
            "communication",
        ),
        ([LOADER, python("Resize.forward", "/srv/app/images.py"), MODULE], "data wait"),
        ([python("_save_checkpoint", "/srv/app/train.py"), python("all_reduce", "/srv/app/x.py")], "other"),
        ([python("save", f"{TORCH}/serialization.py", 900)], "checkpoint"),
        ([python("save_file", "/v/site-packages/safetensors/torch.py", 300)], "checkpoint"),
        ([native("HcclAllReduce", "/usr/local/Ascend/lib64/libhccl.so")], "communication"),
        ([python("Trainer._prepare_inputs", "/v/site-packages/transformers/trainer.py", 9)], "host to device"),
        ([python("shuffle", "/usr/lib/python3.11/random.py")], "other"),
    ],
)
def test_the_phase_of_a_stack_is_that_of_its_highest_rank(stack: list[Frame], phase: str) -> None:
    stack = stack if phase != "other" else stack[:1]
    found = find_phases(stack, StackFrames(stack, [tuple(range(len(stack)))]))
    assert found.names[found.of_stack[0]] == phase


def test_a_phase_of_ones_own_comes_first() -> None:
    stack = [python("shuffle", "/srv/app/data.py"), LOADER]
    for text, name in (("data wait=shuffle", "data wait"), ("mixing=shuffle", "mixing")):
        found = find_phases(stack, StackFrames(stack, [(0, 1)]), [parse_phase(text)])
        assert found.names[found.of_stack[0]] == name and found.names[-1] == "other"
    for wrong in ("", "mixing", "=x", "mixing="):
        with pytest.raises(ValueError, match="NAME=REGEX"):
            parse_phase(wrong)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_turns_that_an_optimizer_runs_in_now_and_then(every: int) -> None:
    """It is short, and seen in one of its turns in three."""
    begin = np.arange(600) * 10 * MS
    runs = [begin[turn] + 9 * MS for turn in range(every - 1, 600, every) if turn * 7919 % 3 == 0 or turn % 11 == 0]
    found = every_so_many(begin, np.array(runs))
    assert (found == begin[::every]).all()


def test_few_runs_say_nothing() -> None:
    begin = np.arange(100) * 10 * MS
    assert (every_so_many(begin, begin[1:40:2] + MS) == begin).all()
