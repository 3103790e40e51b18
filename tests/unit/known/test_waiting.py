"""The table of functions that wait: which names, of which files, are of which kind."""

from __future__ import annotations

import pytest

from bpfprof.known import waiting
from bpfprof.known.waiting import (
    KINDS,
    Waiting,
    add_waiting,
    kind_of,
    known_waiting,
    parse_waiting,
    pool_lines,
    pool_of,
)

CUDA, CUDART = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "/venv/nvidia/cuda_runtime/lib/libcudart.so.13"
HIP, GOMP = "/opt/rocm/lib/libamdhip64.so.6", "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0"
ACL, HCCL = "/usr/local/Ascend/lib64/libascendcl.so", "/usr/local/Ascend/lib64/libhccl.so"
NCCL, SYCL = "/venv/nvidia/nccl/lib/libnccl.so.2", "/opt/intel/oneapi/lib/libsycl.so.8"
TBB, IOMP, OMP = "/venv/lib/libtbb.so.12", "/venv/lib/libiomp5.so", "/usr/lib/llvm-14/lib/libomp.so.5"
TORCH, JAX = "/venv/torch/lib/libtorch_cpu.so", "/venv/jaxlib/libjax_common.so"
MPI, PAL, MPICH = "/usr/lib/libmpi.so.40", "/usr/lib/libopen-pal.so.80", "/usr/lib/libmpich.so.12"


@pytest.mark.parametrize(
    ("function", "file", "kind"),
    [
        ("cuStreamSynchronize", CUDA, "sync"),
        ("cuEventSynchronize", CUDA, "sync"),
        ("cudaDeviceSynchronize", "/venv/torch/lib/libtorch_cuda.so", "sync"),
        ("hipStreamSynchronize", HIP, "sync"),
        ("aclrtSynchronizeStreamWithTimeout", ACL, "sync"),
        ("zeEventHostSynchronize", "/usr/lib/libze_loader.so.1", "sync"),
        ("jax::PyArray::BlockUntilReady() const", JAX, "sync"),
        ("aclrtProcessReport", ACL, "sync"),
        ("aclmdlExecute", ACL, "sync"),
        ("aclmdlExecuteAsync", ACL, "launch"),
        ("HcclCommInitRootInfo", HCCL, "sync"),
        ("HcclAllReduce", HCCL, "launch"),
        ("sycl::_V1::queue::wait_proxy(sycl::_V1::detail::code_location const&)", SYCL, "sync"),
        ("sycl::_V1::event::wait_and_throw()", SYCL, "sync"),
        ("sycl::_V1::queue::wait_list()", SYCL, ""),
        ("ncclCommInitRankConfig", NCCL, "sync"),
        ("ncclGroupEnd", NCCL, "launch"),  # what others launch in a group is handed over in it
        ("cuMemcpyHtoDAsync_v2", CUDA, "upload"),
        ("cuMemcpyDtoHAsync_v2", CUDA, "download"),
        ("cudaMemcpyAsync", CUDART, "copy"),
        ("aclrtMemcpyAsync", ACL, "copy"),
        ("cuLaunchKernelEx", CUDA, "launch"),
        ("hipModuleLaunchKernel", HIP, "launch"),
        ("", GOMP, "spin-own"),
        ("gomp_barrier_wait_end", GOMP, "spin-own"),
        ("GOMP_loop_nonmonotonic_dynamic_next", GOMP, "work"),
        ("", IOMP, "spin-own"),
        ("", "/venv/lib/libomp-54bf90b5.so.5", "spin-own"),
        ("__kmp_hyper_barrier_release(barrier_type, kmp_info*, int, int, int, void*)", OMP, "spin-own"),
        ("__kmpc_barrier", IOMP, "spin-own"),
        ("__kmpc_fork_call", IOMP, "spin-own"),  # its team is waited for in it
        ("__kmpc_dispatch_next_8u", IOMP, "work"),
        ("__kmp_invoke_microtask", OMP, "work"),
        ("", TBB, "spin-own"),
        ("", "/venv/lib/libtbb-ca48af2a.so.12.13", "spin-own"),
        ("", "/usr/lib/libtbb.so.2", ""),  # it has names
        ("", "/venv/lib/libtbbmalloc.so.2", ""),
        ("tbb::detail::r1::allocate(tbb::detail::d1::small_object_pool*&, unsigned long)", TBB, "work"),
        ("tbb::detail::r1::outermost_worker_waiter::continue_execution(tbb::detail::r1::arena_slot&)", TBB, "spin"),
        ("thread_main", TORCH, "spin-own"),
        ("pthreadpool_parallelize", TORCH, "spin-own"),
        ("", "/usr/lib/libpthreadpool.so.0", "spin-own"),
        ("thread_main", "/srv/app/libmine.so", ""),
        ("", TORCH, ""),
        ("dnnl::impl::cpu::x64::simple_barrier::barrier(dnnl::impl::cpu::x64::ctx_t*, int)", TORCH, "spin"),
        ("dnnl::impl::cpu::x64::simple_barrier::jit_t::generate()", TORCH, ""),
        ("absl::lts_20250814::base_internal::SpinLock::SlowLock()", JAX, "spin"),
        ("AbslInternalSpinLockDelay_lts_20250814", JAX, "spin"),
        ("SpinLock::SlowLock()", "/usr/lib/libtcmalloc.so.4", "spin"),
        ("SpinLock::SlowLock()", "/srv/app/libmine.so", ""),
        ("gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>)", TORCH, "spin"),
        ("gloo::transport::tcp::Buffer::waitSend()", "/usr/lib/libgloo.so.0", "spin"),
        ("gloo::transport::tcp::Pair::waitUntilConnected(std::unique_lock<std::mutex>&, bool)", TORCH, ""),
        ("blas_thread_server", "/usr/lib/libopenblas.so.0", "spin-own"),
        ("sched_yield", "/usr/lib/x86_64-linux-gnu/libc.so.6", "spin"),
        ("pthread_spin_lock", "/usr/lib/x86_64-linux-gnu/libc.so.6", "spin"),
        ("MPI_Allreduce", MPI, "spin"),
        ("ompi_request_default_wait_all", MPI, "spin"),
        ("ompi_sync_wait_mt", PAL, "spin"),
        ("opal_progress", PAL, "spin"),
        ("MPIR_Waitall", MPICH, "spin"),
        ("MPID_Progress_wait", MPICH, "spin"),
        ("MPI_Comm_rank", MPI, ""),
        ("ucp_worker_progress", "/usr/lib/libucp.so.0", "spin"),
        ("uct_tcp_iface_progress", "/usr/lib/ucx/libuct.so.0", "spin"),
        ("ompi_op_avx_2buff_add_float_avx512", MPI, "work"),
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
    assert {line.kind for line in known_waiting() if isinstance(line, Waiting)} == {*range(1, len(KINDS) + 1)}
    assert {line.anywhere for line in pool_lines()} == {True, False}


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


def test_a_user_names_pools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_of_user", [])
    add_waiting(parse_waiting("pool  libours  .*  Ours  OURS_THREADS\npool-root  libgomp  .*  Mine  MINE"))
    found = [pool_lines()[pool_of("run", f"/srv/{file}")] for file in ("libours.so", "libgomp.so.1", "libomp.so.5")]
    is_of_other = pool_of("run", "/srv/other.so") < 0
    monkeypatch.undo()
    add_waiting(())
    assert [(line.name, line.anywhere) for line in found] == [("Ours", True), ("Mine", False), ("OpenMP", True)]
    assert is_of_other and found[0].setting == "OURS_THREADS"


@pytest.mark.parametrize("text", ["sync  .", "nonsense  .  f", "sync  (  f", "pool  lib  .*  Ours"])
def test_a_line_that_says_nothing_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        parse_waiting(f"# of ours\n{text}\n")
