"""PyTorch: worker processes, backward passes, and the C++ threads that autograd runs some of them in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests import torch_root
from tests.integration.recorded import Folded, bpfprof, collapsed, needs_root, program, running

pytestmark = [needs_root, pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap makes its root")]


@dataclass
class Trained:
    """A recording of training_torch.py as text, its quality line in one line, and the pid of its first process."""

    pid: int
    folded: Folded
    quality: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    path = tmp_path_factory.mktemp("torch") / "torch.bpfprof"
    with running(torch_root.python(), program("training_torch.py")) as target:
        # The first one may have to make the unwind tables of libtorch, which takes seconds; they are kept.
        for _ in range(2):
            bpfprof("record", "-p", target.pid, "-d", 4, "-r", 199, "-o", path)
        quality = " ".join(bpfprof("report", path, "--details").stdout.split())
        yield Trained(target.pid, collapsed(path), quality)


def functions(frames: tuple[str, ...]) -> list[str]:
    return [frame.rpartition(" (")[0] for frame in frames]


def test_stacks_are_whole(trained: Trained) -> None:
    complete = re.search(r"stacks ([\d.]+)% complete", trained.quality)
    assert complete and float(complete[1]) >= 95, trained.quality


def test_workers_are_followed(trained: Trained) -> None:
    main, workers = trained.folded.of_process(trained.pid), set()
    for process, _, frames, _ in trained.folded.lines:
        if "augment" in functions(frames):
            workers.add(process)
    assert len(workers) == 2 and "augment" not in main.functions()


def test_autograds_threads_are_whole(trained: Trained) -> None:
    """From the start of a thread of C++, through autograd's engine, to what it calls in Python."""
    lines = [(thread, functions(frames)) for _, thread, frames, _ in trained.folded.lines]
    found = [(thread, names) for thread, names in lines if "deepest" in names]
    assert found
    for thread, names in found:
        assert not thread.endswith(f"({trained.pid})"), "the main thread goes 60 deep only"
        begin = next(place for place, name in enumerate(names) if name.endswith("Engine::reentrant_thread_init()"))
        # Rootward of it is what starts a thread in C++ and C.
        assert begin < 6 and not names[0].startswith("[truncated"), names
        assert begin < names.index("Nested.backward") < names.index("deepest")


def test_the_pass_that_was_asked_for_runs_below_its_caller(trained: Trained) -> None:
    """In the main thread: `step` calls the engine, and that calls operators."""
    rows = [functions(frames) for _, _, frames, _ in trained.folded.of_thread(trained.pid).lines]
    assert any(
        "step" in names and any("Engine::execute" in name for name in names[names.index("step") :]) for names in rows
    )
