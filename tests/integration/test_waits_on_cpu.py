"""Waiting that burns CPU, against programs that know it: libraries in place of a GPU's, and threads that spin."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import PYTHON, Target, bpfprof, needs_root, program, recording, running

pytestmark = [needs_root, pytest.mark.second_tier]
RECORD_S = 3
BAR = 0.03
WAITS = ("yields", "locks", "uneven", "python_spin")
WORKS = ("compute", "even", "polite", "python_compute", "python_polite", "mutexes")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    driver, runtime = folder / "libcuda.so.1", folder / "libcudart.so.13"
    flags = ("gcc", "-O1", "-s", "-shared", "-fPIC")
    subprocess.run([*flags, "-DDRIVER", "-pthread", "-o", driver, program("gpu.c")], check=True)
    subprocess.run([*flags, "-o", runtime, program("gpu.c"), driver, f"-Wl,-rpath,{folder}"], check=True)
    return runtime


@pytest.fixture(scope="module")
def spins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("spins") / "libspins.so"
    subprocess.run(["gcc", "-O1", "-fopenmp", "-shared", "-fPIC", "-o", library, program("spins.c")], check=True)
    return library


def recorded(path: Path, times: float, *command: object, **environment: str) -> tuple[dict[str, Any], str]:
    """(the JSON report, what the program says at its end)

    The programs' turns last 20 ms: at 199 Hz samples fall on nearly the same four places of each.
    """
    with running(*map(str, command), env={**os.environ, **environment}) as target:
        assert isinstance(target, Target)
        with recording("-p", target.pid, "-r", 499, "-o", path) as recorder:
            target.tell("from now on")
            time.sleep(times * RECORD_S)
            target.tell("until now")
            assert recorder.end().returncode == 0
        told = target.end()
    return json.loads(bpfprof("report", path, "-f", "json").stdout), told


@pytest.mark.parametrize(
    ("function", "way", "sentence"),
    [
        *(("cudaStreamSynchronize", way, "Waits for the GPU ") for way in ("spin", "yield", "block", "poll", "sleep")),
        ("cudaMemcpyAsync", "spin", "Copies pageable memory to the GPU "),
        ("cudaMemcpy", "spin", "Waits for the GPU "),
        ("cudaMemcpy", "yield", "Waits for the GPU "),
        ("cudaLaunchKernelExC", "yield", "Waits for the GPU "),
        ("cudaMalloc", "spin", "Takes and gives back memory of the GPU "),
    ],
)
def test_a_device_is_waited_for(
    way: str, function: str, sentence: str, cuda: Path, tmp_path: Path, look: Callable[..., None]
) -> None:
    def judge(times: float) -> None:
        path = tmp_path / "it.bpfprof"
        report, told = recorded(path, times, PYTHON, program("gpu_waits.py"), cuda, function, GPU_WAITS=way)
        verdict = report["verdict"]
        assert (verdict["bound"], verdict["where"]["function"]) == ("gpu", "call_library"), verdict
        assert verdict["sentence"].startswith(sentence)
        assert abs(verdict["share"] - float(told)) <= BAR, (verdict["share"], told)
        # The driver's own threads, which have no other name than the program, serve nobody.
        driver = [it for it in report["threads"] if it["name"].startswith("python")]
        assert len(driver) == 2 and not any({*it["shares"]} & {"device", "lock", "net", "other"} for it in driver), (
            driver
        )

    look(judge)


def spun(report: dict[str, Any]) -> float:
    """Of the CPU time of all threads, that which only waits; waiting for a CPU is neither."""
    shares = [it["shares"] for it in report["threads"]]
    waits, works = (
        sum(it.get(name, 0) for it in shares for name in names) for names in (["spin"], ["python", "native"])
    )
    return waits / (waits + works)


@pytest.mark.parametrize(("kind", "policy"), [*((it, "active") for it in WAITS + WORKS), ("uneven", "passive")])
def test_threads_that_spin(kind: str, policy: str, spins: Path, tmp_path: Path, look: Callable[..., None]) -> None:
    """Of two threads with a barrier, one of which has all of the work, half of the CPU time is waiting."""

    def judge(times: float) -> None:
        command = (PYTHON, program("spins.py"), spins, kind)
        report, _ = recorded(tmp_path / "it.bpfprof", times, *command, OMP_WAIT_POLICY=policy)
        part = spun(report)
        if kind == "uneven" and policy == "active":
            main = next(it for it in report["threads"] if it["name"] == "MainThread")
            assert main["shares"].get("spin", 0) <= 0.1 * main["wall_s"]
            assert part > 0.4 and report["verdict"]["bound"] in ("spin", "native", "ready")
        elif kind in WAITS and policy == "active":
            assert part >= 1 - BAR, part
            assert report["verdict"]["bound"] in ("spin", "ready")
        else:
            # A team that is even waits a little all the same, where the CPUs have other work.
            assert part <= (BAR if kind != "even" else 0.2), part
            assert report["verdict"]["bound"] not in ("spin", "gpu")

    look(judge)


def test_a_thread_that_spins_half_of_the_time(spins: Path, tmp_path: Path, look: Callable[..., None]) -> None:
    def judge(times: float) -> None:
        report, told = recorded(tmp_path / "it.bpfprof", times, PYTHON, program("spins.py"), spins, "half")
        assert 0.3 < float(told) < 0.7 and abs(spun(report) - float(told)) <= BAR, (spun(report), told)

    look(judge)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="OpenBLAS has a pool where there are several CPUs")
def test_a_pool_of_blas_that_spins_has_no_say(spins: Path, tmp_path: Path, look: Callable[..., None]) -> None:
    """OpenBLAS's thread spins for its next product while the main thread computes in Python, most of the time."""

    def judge(times: float) -> None:
        command = (PYTHON, program("spins.py"), spins, "blas")
        report, _ = recorded(tmp_path / "it.bpfprof", times, *command, OPENBLAS_NUM_THREADS="2")
        main, *pool = sorted(report["threads"], key=lambda thread: thread["name"] != "MainThread")
        shares = [thread["shares"] for thread in pool if thread["cpu_s"] + thread["shares"].get("spin", 0) > 0]
        assert sum(each.get("spin", 0) for each in shares) > 4 * sum(each.get("native", 0) for each in shares), shares
        assert main["shares"].get("python", 0) > 0.7 * (main["cpu_s"] + main["cpu_waiting_s"]), (
            main
        )  # it waits for the pool
        assert report["verdict"]["bound"] in ("python", "ready"), report["verdict"]
        assert report["verdict"]["where"]["function"] == "python_compute"

    look(judge)
