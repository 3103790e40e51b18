"""The table of functions that wait: which names, of which files, are of which kind."""

from __future__ import annotations

import pytest

from bpfprof.known import waiting
from bpfprof.known.waiting import KINDS, add_waiting, kind_of, known_waiting, parse_waiting

CUDA, CUDART = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "/venv/nvidia/cuda_runtime/lib/libcudart.so.13"
HIP, GOMP = "/opt/rocm/lib/libamdhip64.so.6", "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0"


@pytest.mark.parametrize(
    ("function", "file", "kind"),
    [
        ("cuStreamSynchronize", CUDA, "sync"),
        ("cuEventSynchronize", CUDA, "sync"),
        ("cudaDeviceSynchronize", "/venv/torch/lib/libtorch_cuda.so", "sync"),
        ("hipStreamSynchronize", HIP, "sync"),
        ("aclrtSynchronizeStreamWithTimeout", "/usr/local/Ascend/lib64/libascendcl.so", "sync"),
        ("zeEventHostSynchronize", "/usr/lib/libze_loader.so.1", "sync"),
        ("jax::PyArray::BlockUntilReady() const", "/venv/jaxlib/libjax_common.so", "sync"),
        ("cuMemcpyHtoDAsync_v2", CUDA, "upload"),
        ("cuMemcpyDtoHAsync_v2", CUDA, "download"),
        ("cudaMemcpyAsync", CUDART, "copy"),
        ("aclrtMemcpyAsync", "/usr/local/Ascend/lib64/libascendcl.so", "copy"),
        ("cuLaunchKernelEx", CUDA, "launch"),
        ("hipModuleLaunchKernel", HIP, "launch"),
        ("", GOMP, "spin-own"),
        ("gomp_barrier_wait_end", GOMP, "spin-own"),
        ("GOMP_loop_nonmonotonic_dynamic_next", GOMP, "work"),
        ("blas_thread_server", "/usr/lib/libopenblas.so.0", "spin-own"),
        ("sched_yield", "/usr/lib/x86_64-linux-gnu/libc.so.6", "spin"),
        ("pthread_spin_lock", "/usr/lib/x86_64-linux-gnu/libc.so.6", "spin"),
        ("MPI_Allreduce", "/usr/lib/libmpi.so.40", "spin"),
        ("ompi_op_avx_2buff_add_float_avx512", "/usr/lib/libmpi.so.40", "work"),
        ("dgemm_kernel_HASWELL", "/usr/lib/libopenblas.so.0", ""),
        ("cudaMalloc", CUDART, "memory"),
        ("cuMemFree_v2", CUDA, "memory"),
        ("hipHostMalloc", HIP, "memory"),
        ("cuEventQuery", CUDA, "query"),
        ("cuMemcpyDtoDAsync_v2", CUDA, "launch"),
        ("cuGetErrorString", CUDA, ""),
        ("cudaStreamSynchronizer", CUDART, "sync"),  # a suffix is a version of it, as _ptsz
        ("my_cuStreamSynchronize", "/srv/app/libmine.so", ""),
        ("MPI_Allreduce", "/srv/app/libmine.so", ""),
        ("", "/srv/app/libmine.so", ""),
    ],
)
def test_kinds(function: str, file: str, kind: str) -> None:
    number = kind_of(function, file)
    assert (KINDS[number - 1] if number else "") == kind


def test_of_a_name_of_megabytes_the_beginning_is_looked_at() -> None:
    assert kind_of("cuMemcpyHtoD" + "x" * 10_000_000, CUDA) in range(len(KINDS) + 1)


def test_each_kind_has_a_line() -> None:
    assert {line.kind for line in known_waiting()} == {*range(1, len(KINDS) + 1)}


def test_lines_of_a_user_come_before_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_of_user", [])
    assert [kind_of(name, "/srv/libnpu.so") for name in ("npuWait", "npuSubmit")] == [0, 0]
    add_waiting(parse_waiting("sync  libnpu  npuWait\nwork  libcuda  cuStreamSynchronize"))
    kinds = [
        kind_of("npuWait", "/srv/libnpu.so"),
        kind_of("cuStreamSynchronize", CUDA),
        kind_of("cuCtxSynchronize", CUDA),
    ]
    monkeypatch.undo()
    add_waiting(())
    assert [KINDS[kind - 1] for kind in kinds] == ["sync", "work", "sync"]


@pytest.mark.parametrize("text", ["sync  .", "nonsense  .  f", "sync  (  f"])
def test_a_line_that_says_nothing_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        parse_waiting(f"# of ours\n{text}\n")
