"""Pools of threads: whose the threads of libraries are, and which setting makes them fewer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.threads.pools import pools_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import INFO, MS, ON_CPU, READY, RUNQUEUE, ProfileBuilder, native, python

BODY = native("kernel", "/srv/app/libmine.so")
BLAS = "/venv/numpy.libs/libscipy_openblas64_-ff651d7f.so"


@pytest.mark.parametrize(
    ("stack", "name", "setting"),
    [
        ([native("", "/usr/lib/libgomp.so.1"), BODY], "OpenMP", "OMP_NUM_THREADS=2"),
        ([native("__kmp_launch_thread", "/venv/lib/libiomp5.so"), BODY], "OpenMP", "OMP_NUM_THREADS=2"),
        ([native("blas_thread_server", BLAS), native("dgemm_kernel", BLAS)], "OpenBLAS", "OPENBLAS_NUM_THREADS=2"),
        ([native("", BLAS), native("", BLAS)], "OpenBLAS", "OPENBLAS_NUM_THREADS=2"),
        ([native("", "/venv/polars/_polars_runtime.abi3.so")], "Polars", "POLARS_MAX_THREADS=2"),
        ([native("rayon_core::registry::ThreadBuilder::run", "/srv/x.so"), BODY], "Rayon", "RAYON_NUM_THREADS=2"),
        (
            [native("tokio::runtime::scheduler::multi_thread::worker::run", "/srv/x.so"), BODY],
            "Tokio",
            "TOKIO_WORKER_THREADS=2",
        ),
        ([native("", "/venv/lib/libtbb.so.12"), BODY], "TBB", "tbb::global_control::max_allowed_parallelism=2"),
        (
            [native("", "/venv/lib/libtbb.so.12"), native("", "/venv/numba/np/ufunc/tbbpool.cpython-311.so"), BODY],
            "Numba",
            "NUMBA_NUM_THREADS=2",
        ),
        (
            [native("Eigen::ThreadPoolTempl<tsl::thread::EigenEnvironment>::WorkerLoop(int)", "/venv/tf/libtf.so.2")],
            "TensorFlow",
            "TF_NUM_INTRAOP_THREADS=2",
        ),
        (
            [native("c10::ThreadPool::main_loop(unsigned long)", "/venv/torch/lib/libc10.so"), BODY],
            "PyTorch",
            "torch.set_num_interop_threads(2)",
        ),
        (
            [native("arrow::internal::WorkerLoop(std::shared_ptr<int>)", "/venv/pyarrow/libarrow.so.2000"), BODY],
            "Arrow",
            "pyarrow.set_cpu_count(2)",
        ),
    ],
)
def test_threads_of_a_pool_and_what_sets_their_number(stack: list[Frame], name: str, setting: str) -> None:
    made = ProfileBuilder(info=replace(INFO, cpu_limits={100: 2.0}))
    main = made.thread(100, "MainThread")
    workers = [made.thread(101 + number, "worker") for number in range(8)]
    stack = [native("start_thread"), *stack]
    for _ in range(50):
        made.spend(main, ON_CPU, 40 * MS, [python("main", line=3)])
        for worker in workers:
            made.spend(worker, ON_CPU, 10 * MS, stack)
            made.spend(worker, RUNQUEUE, 30 * MS, [*stack, READY])
    profile = made.build()
    work = work_of(profile)
    (pool,) = pools_of(profile, work)
    assert (pool.name, pool.threads) == (name, tuple(workers))
    verdict = verdict_of(profile, work)
    assert f"8 threads of {name} for 2 CPUs" in verdict.sentence and verdict.advice == setting


def test_code_of_the_program_alone_is_no_pool() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(100), ON_CPU, MS, [native("start_thread"), BODY])
    profile = made.build()
    assert pools_of(profile, work_of(profile)) == []
