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
from bpfprof.query.steps.ranks import ON_CPU, RankLoop


def until_all_are_there(
    loops: Sequence[RankLoop], are_waits: Sequence[Bools], clocks: Clocks
) -> tuple[list[RankLoop], list[Bools]]:
    """Of loops that step together: the same, their spans cut where the last of them comes to communicate; and which of
    the spans, as they are now, are waits for others. The same as before where their clocks are not one."""
    if not clocks.are_one:
        return list(loops), list(are_waits)
    zeros = clocks.zeros_ns
    in_them, asleep = (
        [(begin_ns + zero, end_ns + zero) for (begin_ns, end_ns), zero in zip(map(times, loops), zeros)]
        for times in (runs, _stands)
    )
    found = []
    for place, (loop, is_wait) in enumerate(zip(loops, are_waits)):
        own, others = in_them[place], in_them[:place] + in_them[place + 1 :]
        late = merged(*(np.concatenate(each) for each in zip(*(_late(own, other) for other in others))))
        loop, is_wait, is_early = _cut(loop, is_wait, loop.communicates & ~is_wait, late, zeros[place])
        alone = _alone(own, asleep[:place] + asleep[place + 1 :])
        loop, is_wait, is_alone = _cut(loop, is_wait | is_early, loop.is_starved, alone, zeros[place])
        found.append((replace(loop, is_starved=loop.is_starved & ~is_alone), is_wait))
    return [each for each, _ in found], [each for _, each in found]


def leaves_later(loop: RankLoop, zero: int, one: RankLoop, zero_of_one: int) -> tuple[Ints, Ints]:
    """From when until when a loop communicates still, by its own clock, and another has done that and goes on."""
    (begin_ns, end_ns), (ones_begin_ns, ones_end_ns) = _stands(loop), _stands(one)
    apart = zero_of_one - zero
    begin_ns, end_ns = _alone((begin_ns, end_ns), [(ones_begin_ns + apart, ones_end_ns + apart)])
    begun, ended = (np.searchsorted(each + apart, end_ns) for each in (ones_begin_ns, ones_end_ns))
    return begin_ns[begun == ended], end_ns[begun == ended]


def _stands(loop: RankLoop) -> tuple[Ints, Ints]:
    """Since its recording began, from when until when it waits in communication, for others or a CPU.

    Between two collectives it may run for so short that no sample tells it from them.
    """
    chosen = loop.communicates & np.array([each.state not in ON_CPU for each in loop.activities] or [False])[loop.what]
    return merged(loop.start_ns[chosen], loop.end_ns[chosen])


def _cut(
    loop: RankLoop, is_wait: Bools, chosen: Bools, times: tuple[Ints, Ints], zero: int
) -> tuple[RankLoop, Bools, Bools]:
    """(a loop with its chosen spans cut at times of the common clock; for each piece whether it is a wait; whether it
    is in these times)"""
    span, start_ns, end_ns, is_in = cut_where(loop.start_ns, loop.end_ns, chosen, times[0] - zero, times[1] - zero)
    columns = {name: getattr(loop, name)[span] for name in ("what", "ended_by", "is_starved")}
    return replace(loop, start_ns=start_ns, end_ns=end_ns, **columns), is_wait[span], is_in


def _alone(own: tuple[Ints, Ints], others: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """From when until when a rank communicates still, and all others have done: by that it comes late to the next."""
    begin_ns, end_ns = own
    left_ns = begin_ns
    for _, ends_ns in others:
        last_ns = np.append(np.int64(-1), ends_ns)[np.searchsorted(ends_ns, end_ns, side="right")]
        left_ns = np.maximum(left_ns, np.where(last_ns > begin_ns, last_ns, end_ns))
    is_last = left_ns < end_ns
    return left_ns[is_last], end_ns[is_last]


def _late(own: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """From when until when a rank communicates and another is not there yet, but comes before this one has done."""
    begin_ns, end_ns = own
    there_ns = others[0]
    left_ns = np.append(np.int64(np.iinfo(np.int64).min), others[1][:-1])[: len(there_ns)]
    run = np.searchsorted(begin_ns, there_ns) - 1
    comes = (run >= 0) & (there_ns <= end_ns[run]) if len(begin_ns) else np.zeros(len(there_ns), np.bool_)
    return np.maximum(begin_ns[run[comes]], left_ns[comes]), there_ns[comes]
