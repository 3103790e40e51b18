"""A profile and its work -> pools of threads: whose they are, how long they spin, and what sets their number."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.work.shares import NATIVE, PYTHON, READY, SPIN
from bpfprof.query.work.table import Work

_MOST = 0.5  # of what a thread works in stacks of a pool: then it is one of its threads
_KEPT = 1 << 12
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class _Kind:
    """file, function: regular expressions, searched in a native frame. anywhere: a stack that has one such frame is of
    the pool; else its outermost frame must be one.
    """

    name: str
    setting: str
    file: str = ""
    function: str = ""
    anywhere: bool = True


# The first that fits counts. Settings: as the documentation of each names them.
_KINDS = (
    _Kind("OpenMP", "OMP_NUM_THREADS", file=r"^lib(?:gomp|omp|iomp5)\b"),
    _Kind("OpenBLAS", "OPENBLAS_NUM_THREADS", function=r"blas_thread_server$|^(?:\w+_)?exec_blas"),
    _Kind("OpenBLAS", "OPENBLAS_NUM_THREADS", file=r"openblas", anywhere=False),
    _Kind("Polars", "POLARS_MAX_THREADS", file=r"^_?polars", anywhere=False),
    _Kind("Rayon", "RAYON_NUM_THREADS", function=r"\brayon_core::"),
    _Kind("Tokio", "TOKIO_WORKER_THREADS", function=r"\btokio::runtime::"),
    _Kind("Numba", "NUMBA_NUM_THREADS", file=r"^(?:workqueue|omppool|tbbpool)\."),
    _Kind("TBB", "tbb::global_control::max_allowed_parallelism", file=r"^libtbb\b"),
    _Kind("XLA", "PJRT_NPROC", file=r"^(?:libjax_common|xla_extension)\b", function=r"^Eigen::ThreadPoolTempl"),
    _Kind("TensorFlow", "TF_NUM_INTRAOP_THREADS", function=r"^Eigen::ThreadPoolTempl"),
    _Kind("PyTorch", "torch.set_num_interop_threads()", function=r"^c10::ThreadPool::"),
    _Kind("Arrow", "pyarrow.set_cpu_count()", function=r"^arrow::internal::(?:ThreadPool|WorkerLoop)"),
)


@dataclass(frozen=True)
class Pool:
    """threads: places in Profile.threads of those that work in it. spin_ns: CPU time in which they wait for others."""

    name: str
    setting: str
    threads: tuple[int, ...]
    cpu_ns: int
    ready_ns: int
    spin_ns: int


def pools_of(profile: Profile, work: Work) -> list[Pool]:
    """Those that worked or wanted to most first."""
    rows = work.working
    if not len(rows):
        return []
    kinds = _of_stacks(work.stack_frames)
    is_cpu, is_ready = np.isin(rows["share"], (PYTHON, NATIVE, SPIN)), rows["share"] == READY
    count, kind = len(profile.threads), kinds[rows["stack"]]
    all_ns = sums_by(rows["thread"], np.where(is_cpu | is_ready, rows["ns"], 0), count)
    found: dict[str, Pool] = {}
    for name in dict.fromkeys(each.name for each in _KINDS):
        numbers = [number for number, it in enumerate(_KINDS) if it.name == name]
        of_it = np.isin(kind, numbers) & (is_cpu | is_ready)
        if not of_it.any():
            continue
        threads = np.flatnonzero(sums_by(rows["thread"][of_it], rows["ns"][of_it], count) > _MOST * all_ns)
        own = np.isin(rows["thread"], threads)
        spin_ns = int(rows["ns"][own & of_it & (rows["share"] == SPIN)].sum())
        cpu_ns, ready_ns = (int(rows["ns"][own & chosen].sum()) for chosen in (is_cpu, is_ready))
        if len(threads):
            found[name] = Pool(name, _KINDS[numbers[0]].setting, tuple(threads.tolist()), cpu_ns, ready_ns, spin_ns)
    return sorted(found.values(), key=lambda pool: -(pool.cpu_ns + pool.ready_ns))


def _of_stacks(stack_frames: StackFrames) -> Ints:
    """For each stack a place in _KINDS, -1: of no pool."""
    frames = stack_frames.frames
    kinds = np.array([_kind_of(frame) for frame in frames], np.int64)
    anywhere = [number >= 0 and _KINDS[number].anywhere for number in kinds.tolist()]
    found = np.append(kinds, -1)[stack_frames.beginnings()]
    # The first of _KINDS that any frame is of; of the others the outermost frame must be one.
    ranks = np.where(anywhere, len(_KINDS) - kinds, 0)
    inside = stack_frames.outermost_of_best(ranks.tolist())
    return np.where(inside >= 0, np.append(kinds, -1)[inside], found)


def _kind_of(frame: Frame) -> int:
    return _native_kind(frame.file, frame.name) if frame.kind in _NATIVE else -1


@lru_cache(_KEPT)  # frames without a name differ in their addresses alone
def _native_kind(file: str, function: str) -> int:
    name = file.rpartition("/")[2]
    for number, kind in enumerate(_KINDS):
        if re.search(kind.file, name) and re.search(kind.function, function):
            return number
    return -1
