"""What a training loop does besides computing, as one sentence: checkpoints, and who waits for the GPU."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait

PACKAGES = "/venv/lib/python3.12/site-packages"
CUDA, TORCH = "/usr/lib/libcuda.so.580.1", f"{PACKAGES}/torch"
MAIN = python("main", line=3)
FORWARD = [MAIN, python("Module._call_impl", f"{TORCH}/nn/modules/module.py"), native("sgemm", "/usr/lib/libblas.so")]


@pytest.mark.parametrize(
    ("call", "is_checkpoint"),
    [
        (python("save", f"{TORCH}/serialization.py", 900), True),
        (python("save_file", f"{PACKAGES}/safetensors/torch.py", 300), True),
        (python("Trainer._save_checkpoint", f"{PACKAGES}/transformers/trainer.py", 2000), True),
        (python("load", f"{TORCH}/serialization.py", 1300), False),
    ],
)
def test_checkpoints_are_named_with_what_they_wait_for(call: Frame, is_checkpoint: bool) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(60):
        made.spend(main, ON_CPU, 10 * MS, FORWARD)
        made.spend(main, ON_CPU, 5 * MS, [MAIN, call, native("cuMemcpyDtoHAsync_v2", CUDA)])
        made.wait(main, 25 * MS, [MAIN, call, native("write"), wait("disk")])
    profile = made.build()
    sentence = verdict_of(profile, work_of(profile)).sentence
    assert sentence.startswith("Saves checkpoints 75% of the time: main") is is_checkpoint, sentence
    assert not is_checkpoint or "that is 83% disk, 17% GPU" in sentence


@pytest.mark.parametrize(("waits_ms", "bound"), [(6, "gpu"), (4, "python")])
def test_a_main_thread_that_waits_for_the_gpu_most_of_its_time_is_the_one_that_matters(
    waits_ms: int, bound: str
) -> None:
    """Whatever another thread does meanwhile."""
    made = ProfileBuilder()
    main, other = made.thread(100, "MainThread"), made.thread(101, "logger")
    for _ in range(100):
        made.spend(main, ON_CPU, waits_ms * MS, [MAIN, native("cuStreamSynchronize", CUDA)])
        made.spend(main, OFF_CPU, (10 - waits_ms) * MS, [MAIN, native("sleep"), wait("sleep")])
        made.spend(other, ON_CPU, 10 * MS, [python("log", line=9)])
    profile = made.build()
    found = verdict_of(profile, work_of(profile))
    assert found.bound == bound
    assert [profile.threads[each].thread_name for each in found.whole.threads] == (
        ["MainThread"] if bound == "gpu" else ["MainThread", "logger"]
    )
