"""PyTorch: worker processes, backward passes, and the C++ threads that autograd runs some of them in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests import torch_root
from tests.integration.recorded import BPFPROF, Folded, bpfprof, collapsed, completed, needs_root, program, running

# A cache of its own, with nothing but the compiled programs.
WITH_CACHE = """
mkdir -p -m 700 /var/cache/bpfprof
find /var/cache/bpfprof -maxdepth 1 -type f -exec cp -p {} "$0" ';'
mount --bind "$0" /var/cache/bpfprof
exec "$@"
"""
LIBTORCH_ROWS_BYTES = 5_000_000
pytestmark = [needs_root, pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap makes its root")]


@dataclass
class Trained:
    """A recording of training_torch.py as text, its quality line in one line, and the pid of its first process."""

    pid: int
    folded: Folded
    quality: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """The first recording on a machine that has no unwind tables yet: they are made before it begins."""
    folder = tmp_path_factory.mktemp("torch")
    path, cache = folder / "torch.bpfprof", folder / "cache"
    cache.mkdir(0o700)
    with running(torch_root.python(), program("training_torch.py")) as target:
        command = [*BPFPROF, "record", "-p", str(target.pid), "-d", "4", "-r", "199", "-o", str(path)]
        completed(["unshare", "--mount", "--propagation", "private", "sh", "-ec", WITH_CACHE, str(cache), *command], 0)
        assert max(file.stat().st_size for file in (cache / "rows").iterdir()) > LIBTORCH_ROWS_BYTES
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
    lines = [(thread, functions(frames), us) for _, thread, frames, us in trained.folded.lines]
    found = [(thread, names, us) for thread, names, us in lines if "deepest" in names]
    cut_us = sum(us for _, names, us in found if names[0].startswith("[truncated"))
    # A stack of the first moment, when the table of a library may not be made yet, says so.
    assert found and cut_us <= 0.05 * sum(us for _, _, us in found), found
    for thread, names, _ in found:
        assert not thread.endswith(f"({trained.pid})"), "the main thread goes 60 deep only"
        if names[0].startswith("[truncated"):
            continue
        begin = next(place for place, name in enumerate(names) if name.endswith("Engine::reentrant_thread_init()"))
        # Rootward of it is what starts a thread in C++ and C.
        assert begin < 6, names
        assert begin < names.index("Nested.backward") < names.index("deepest")


def test_the_pass_that_was_asked_for_runs_below_its_caller(trained: Trained) -> None:
    """In the main thread: `step` calls the engine, and that calls operators."""
    rows = [functions(frames) for _, _, frames, _ in trained.folded.of_thread(trained.pid).lines]
    assert any(
        "step" in names and any("Engine::execute" in name for name in names[names.index("step") :]) for names in rows
    )
