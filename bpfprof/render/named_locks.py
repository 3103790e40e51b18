"""Profile -> the same, in which a wait for a lock ends in that lock: `lock #1, taken in audit (app.py:30)`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import group_numbers
from bpfprof.model.profile import Profile
from bpfprof.model.rows import copied
from bpfprof.query.work.table import Work
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import WAITING
from bpfprof.render.wait_names import WaitNames

MOST_LOCKS = 60  # those that were waited for longest: a stack for each of thousands would be too thin to be seen


def with_named_locks(profile: Profile, work: Work, options: RenderOptions) -> Profile:
    """Frames and stacks are those of the profile, then more; what was found by the place of one is still right.

    Stacks that go on with those of other threads stay as they are: their locks are not those of other views.
    """
    named = np.flatnonzero((work.span_locks > 0) & (work.span_locks <= MOST_LOCKS))
    if not len(named) or any(frame.kind == FrameKind.WOKEN_BY for frame in profile.frames):
        return profile
    assert profile.spans is not None
    names, spans, stacks = WaitNames(profile, work, options), copied(profile.spans), list(profile.stacks)
    places: dict[str, int] = {}
    first, number = group_numbers([spans["stack"][named], work.span_locks[named]])
    for span in named[first].tolist():
        name = names.whole(int(spans["reason"][span]), int(work.span_locks[span])).removeprefix(WAITING)
        place = places.setdefault(name, len(profile.frames) + len(places))
        stacks.append((*stacks[int(spans["stack"][span])][:-1], place))
    spans["stack"][named] = len(profile.stacks) + number
    more = [Frame(FrameKind.WAIT, name) for name in places]
    return replace(profile, frames=(*profile.frames, *more), stacks=tuple(stacks), spans=spans)
