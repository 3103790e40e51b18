"""An honest program beside an attack, which knows its own truth (oracle.py), and how far its recording is from that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bpfprof.model.spans import How, ThreadState
from bpfprof.model.statuses import Status
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import PYTHON, Target, program, running

RATE_HZ = 499
# Of a thread's wall time. Where one function follows another without a wait in between, a sample tells the moment
# within 2 ms: of 4 s with some 100 such moments the standard deviation is 0.2 points.
POINTS = 3.0
LEAST_CPU_S = 1.0  # where other programs take the CPUs it takes longer, and has as many waits for each point


@contextmanager
def bystander() -> Iterator[Target]:
    with running(PYTHON, program("oracle.py")) as target:
        yield target


def answer(target: Target) -> list[dict[str, Any]]:
    """What its threads did since it was told to `start`."""
    target.tell("stop")
    truth: list[dict[str, Any]] = json.loads(target.answer())["threads"]
    return truth


def apart(path: Path, truth: list[dict[str, Any]]) -> dict[str, float]:
    """Points by which the time of each function on a CPU and off it differs from the truth.

    Time in read_clocks() is on neither side for certain: the clocks of the program stop somewhere inside it. Nor are
    single waits for a CPU of 10 ms and more that were not chosen to have a stack, of which others take some 100 ms.
    """
    with path.open("rb") as file:
        recording = read_recording(file)
        profile = build_profile(recording, ProfileOptions(with_spans=True))
    assert profile.spans is not None
    found = {}
    for thread in truth:
        place = next(number for number, row in enumerate(profile.threads) if row.tid == thread["tid"])
        spans = profile.spans[profile.spans["thread"] == place]
        first, last = (thread[edge] - recording.start["start_ns"] for edge in ("start_ns", "end_ns"))
        begin_ns = spans["start_ns"].astype(np.int64)
        inside_ns = (begin_ns + spans["duration_ns"].astype(np.int64)).clip(first, last) - begin_ns.clip(first, last)
        is_on_cpu = spans["state"] == ThreadState.ON_CPU
        names = [{profile.frames[frame].name.rpartition(".")[2] for frame in stack} for stack in profile.stacks]
        measuring = np.array(["read_clocks" in of_stack for of_stack in names])[spans["stack"]]
        measuring |= ~is_on_cpu & (spans["status"] == Status.NOT_SAMPLED) & (spans["how"] != How.SUMMED)
        for function, times in thread["functions"].items():
            below = np.array([function in of_stack for of_stack in names])[spans["stack"]]
            for chosen, kinds in ((is_on_cpu, ("cpu_ns",)), (~is_on_cpu, ("wait_ns", "runqueue_ns"))):
                ns = abs(int(inside_ns[below & chosen].sum()) - sum(times[kind] for kind in kinds))
                ns = max(0, ns - int(inside_ns[measuring & chosen].sum()))
                found[f"{kinds[0]} {thread['name']} {function}"] = 100 * ns / thread["wall_ns"]
    return found
