"""The order of Python and C functions in stacks that go back and forth between them, and threads that are C only."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from bpfprof.model.frames import FrameKind
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.stacks.stitch import StackSource
from tests.integration.call_orders import MARKERS, expected, markers, name_of
from tests.integration.recorded import (
    ALL_INTERPRETERS,
    KINDS_OF_INTERPRETERS,
    Folded,
    collapsed,
    json_line,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the extension is compiled with cc"),
    pytest.mark.skipif(not ALL_INTERPRETERS, reason="no CPython 3.6 to 3.15 under ~/.pyenv/versions or /usr/bin"),
]
WINDOW_S = 3
RATE_HZ = 999
UNTOLD_US = 500_000  # some turns in the run queue of a busy machine
STRIPPED = {"debian-3.11", "sid-3.14", "sid-3.15"}


@dataclass
class Ordered:
    """A recording of call_order.py and extension.py; `kinds`: tid -> its ways through C."""

    name: str
    recording: Recording
    folded: Folded
    kinds: dict[int, list[str]]
    extension: dict[str, int]  # function -> tid


@pytest.fixture(scope="module", params=[name for name in KINDS_OF_INTERPRETERS if name != "3.13t"])
def ordered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ordered:
    python, path = ALL_INTERPRETERS[request.param], tmp_path_factory.mktemp("order") / "x.bpfprof"
    with running(python, program("call_order.py")) as first, running(python, program("extension.py")) as second:
        with recording("-p", first.pid, "-p", second.pid, "-r", RATE_HZ, "-o", path) as recorder:
            time.sleep(WINDOW_S)  # the length of the recording
            done = recorder.end()
            assert done.returncode == 0, done.stderr
        kinds = {int(tid): kinds for tid, kinds in json_line(first.first_line)["threads"].items()}
        ready = json_line(second.first_line)
    with open(path, "rb") as file:
        read_back = read_recording(file)
    extension = {**ready["threads"], "native": ready["native"]}
    return Ordered(request.param, read_back, collapsed(path), kinds, extension)


def test_python_and_c_alternate_as_they_were_called(ordered: Ordered) -> None:
    """A stack taken on the way down has the beginning of it; most have all of it."""
    named = set(MARKERS) - ({"sorted"} if ordered.name in STRIPPED else set())
    right = whole = total = 0
    wrong: Counter[tuple[str, ...]] = Counter()
    for tid, kinds in ordered.kinds.items():
        truth = expected(kinds, named)
        for _, _, frames, weight in ordered.folded.of_thread(tid).lines:
            if frames[0].startswith(("[not sampled]", "[short waits]", "[truncated: stack not taken")):
                continue
            # The key of sorted() is called by list.sort: builtin_sorted is not always on the way.
            found = [it for it in markers(frames) if it not in MARKERS or it in named]
            total += weight
            is_right = found == truth[: len(found)]
            right += weight * is_right
            whole += weight * (found == truth)
            if not is_right:
                wrong[tuple(found)] += weight
    print(f"{ordered.name}: order right in {100 * right / total:.2f} %, whole in {100 * whole / total:.2f} %")
    assert right >= 0.98 * total, wrong.most_common(3)
    assert whole >= 0.6 * total


def test_samples_have_the_order(ordered: Ordered) -> None:
    """The same by samples on the CPU, from the recording's rows: 98 % of them."""
    source = StackSource(ordered.recording)
    named = set(MARKERS) - ({"sorted"} if ordered.name in STRIPPED else set())
    right = total = 0
    wrong: Counter[tuple[str, ...]] = Counter()
    for sample in ordered.recording.samples:
        kinds = ordered.kinds.get(ordered.recording.threads[sample["thread"]].tid)
        if kinds is None:
            continue
        frames = tuple(f"{it.name} ()" for it in source.frames(int(sample["stack"]), int(sample["status"])))
        found = [it for it in markers(frames) if it not in MARKERS or it in named]
        truth = expected(kinds, named)
        is_right = found == truth[: len(found)] and not frames[0].startswith("[")
        total += 1
        right += is_right
        wrong[tuple(found)] += not is_right
    print(f"{ordered.name}: order right in {right} of {total} samples")
    assert total > 100
    assert right >= 0.98 * total, wrong.most_common(3)


def test_twelve_levels_of_c(ordered: Ordered) -> None:
    """Every level of the extension, in order, then the Python function at the bottom; or C to the end."""
    levels = ["call_back", *(f"c_level_{level}" for level in range(1, 13)), "at_the_bottom"]
    for function, top, below in (
        ("call_back_thread", "call_back", "at_the_bottom"),
        ("stay_in_c_thread", "stay_in_c", "burn_in_c"),
    ):
        truth = [function, top, *levels[1:], below]
        right = total = 0
        for _, _, frames, weight in ordered.folded.of_thread(ordered.extension[function]).lines:
            names = [name_of(frame) for frame in frames]
            if "c_level_12" not in names or names[-1:] == ["c_level_12"]:
                continue
            found = [name for name in names if name in truth]
            total += weight
            right += weight * (found == truth[: len(found)])
        print(f"{ordered.name}: {function} right in {100 * right / max(1, total):.2f} % of {total / 1e6:.2f} s")
        assert total > 100_000
        assert right >= 0.98 * total


def test_a_thread_of_c_has_no_python_frame(ordered: Ordered) -> None:
    """Nor do its stacks end before its start routine."""
    lines = [
        line
        for line in ordered.folded.of_thread(ordered.extension["native"]).lines
        if line[2][0] not in ("[not sampled]", "[short waits]")
    ]
    assert sum(weight for *_, weight in lines) > 500_000
    untold_us = 0
    for _, _, frames, weight in lines:
        if frames[0] == "[truncated: stack not taken]":  # it slept, or waited for a CPU, when the recording began
            untold_us += weight
            continue
        names = [name_of(frame) for frame in frames]
        assert names[0] in ("clone3", "__clone3") and names[1:3] == ["start_thread", "native_worker"], frames
        assert not any(".py" in frame for frame in frames), frames
    assert untold_us < UNTOLD_US
    assert {"burn_in_c", "rest_in_c"} <= {name_of(frame) for *_, frames, _ in lines for frame in frames}
    source = StackSource(ordered.recording)
    thread = next(i for i, it in enumerate(ordered.recording.threads) if it.tid == ordered.extension["native"])
    for rows in (ordered.recording.samples, ordered.recording.waits):
        mine = rows[rows["thread"] == thread]
        assert len(mine) > 50
        for stack in set(mine["stack"].tolist()) - {0}:
            assert all(frame.kind != FrameKind.PYTHON for frame in source.frames(stack, 0))
