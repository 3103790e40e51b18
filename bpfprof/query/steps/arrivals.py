"""Loops of ranks -> what each does in communication before all others have come there: it is no time of its own.

A rank that waits for the others may run meanwhile, or wait for a CPU that they use: it asks again and again, or its
library's threads do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.clocks import Clocks, runs
from bpfprof.query.steps.pieces import cut_where, merged
from bpfprof.query.steps.ranks import RankLoop


def until_all_are_there(
    loops: Sequence[RankLoop], are_waits: Sequence[Bools], clocks: Clocks
) -> tuple[list[RankLoop], list[Bools]]:
    """Of loops that step together: the same, their spans cut where the last of them comes to communicate; and which of
    the spans, as they are now, are waits for others. The same as before where their clocks are not one."""
    if not clocks.are_one:
        return list(loops), list(are_waits)
    zeros = clocks.zeros_ns
    of_each = [(begin_ns + zero, end_ns + zero) for (begin_ns, end_ns), zero in zip(map(runs, loops), zeros)]
    found = []
    for place, (loop, is_wait) in enumerate(zip(loops, are_waits)):
        late = [_late(of_each[place], other) for number, other in enumerate(of_each) if number != place]
        begin_ns, until_ns = merged(*(np.concatenate(each) for each in zip(*late)))
        zero, chosen = zeros[place], loop.communicates & ~is_wait
        cut = cut_where(loop.start_ns, loop.end_ns, chosen, begin_ns - zero, until_ns - zero)
        span, start_ns, end_ns, is_early = cut
        columns = {name: getattr(loop, name)[span] for name in ("what", "ended_by", "is_starved")}
        cut_loop = replace(loop, start_ns=start_ns, end_ns=end_ns, **columns)
        found.append((cut_loop, is_wait[span] | is_early))
    return [each for each, _ in found], [each for _, each in found]


def _late(own: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """From when until when a rank communicates and another is not there yet, but comes before this one has done."""
    begin_ns, end_ns = own
    there_ns = others[0]
    left_ns = np.append(np.int64(np.iinfo(np.int64).min), others[1][:-1])[: len(there_ns)]
    run = np.searchsorted(begin_ns, there_ns) - 1
    comes = (run >= 0) & (there_ns <= end_ns[run]) if len(begin_ns) else np.zeros(len(there_ns), np.bool_)
    return np.maximum(begin_ns[run[comes]], left_ns[comes]), there_ns[comes]
