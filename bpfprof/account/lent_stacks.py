"""Stacks for long waits that chance did not choose to have one: those of waits of their thread in the same call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bpfprof.account.reasons import call_keys
from bpfprof.model.samples import LONG_WAIT_NS
from bpfprof.model.statuses import Status

NOT_SAMPLED = int(Status.NOT_SAMPLED)
Int64Array = npt.NDArray[np.int64]


def lend_stacks(waits: npt.NDArray[np.void], unended: npt.NDArray[np.void]) -> None:
    """Gives rows of WAIT_DTYPE that were not sampled the stack of the nearest in time that was, in place.

    It is one of the same thread, with the same system call and small first argument, and as long, if there is any such.
    The status stays as it is, so that these rows can be told. unended: rows that had not ended.
    """

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([waits[name], unended[name]])

    missing = joined("status") == NOT_SAMPLED
    if not missing.any():
        return
    first_args = np.concatenate([waits["args"][:, 0], unended["args"][:, 0]])
    calls, call = np.unique(call_keys(joined("syscall"), first_args), return_inverse=True)
    keys = joined("thread").astype(np.int64) * len(calls) + call
    stacks, times_ns = joined("stack"), joined("time_ns").astype(np.int64)
    has_stack = (stacks > 0) & ~missing
    is_long = joined("blocked_ns") + joined("runqueue_ns") >= LONG_WAIT_NS
    for lenders in (has_stack & is_long, has_stack):
        _lend(stacks, times_ns, keys, np.flatnonzero(missing & (stacks == 0)), np.flatnonzero(lenders))
    waits["stack"], unended["stack"] = np.split(stacks, [len(waits)])


def _lend(
    stacks: npt.NDArray[np.uint32],
    times_ns: Int64Array,
    keys: Int64Array,
    missing: npt.NDArray[np.intp],
    lenders: npt.NDArray[np.intp],
) -> None:
    lenders = lenders[np.lexsort((times_ns[lenders], keys[lenders]))]
    for key in np.unique(keys[missing]).tolist():
        own = missing[keys[missing] == key]
        like = lenders[slice(*np.searchsorted(keys[lenders], (key, key + 1)))]
        if len(like):
            after = np.searchsorted(times_ns[like], times_ns[own]).clip(0, len(like) - 1)
            before = (after - 1).clip(0)
            is_before = np.abs(times_ns[like][before] - times_ns[own]) <= np.abs(times_ns[like][after] - times_ns[own])
            stacks[own] = stacks[like[np.where(is_before, before, after)]]
