"""Work -> how much of it saves checkpoints, what that is spent on, and where."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof.model.profile import Profile
from bpfprof.query.answer.causes import cause_ns, mix_of
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.steps.phases import CHECKPOINT, StackPhases
from bpfprof.query.work.places import place_text, top_place
from bpfprof.query.work.shares import IDLE
from bpfprof.query.work.table import Work

_LEAST = 0.25  # of the time: less is no story


def checkpoint_facts(
    profile: Profile, work: Work, phases: StackPhases, causes: Ints, whole_ns: int
) -> tuple[dict[str, Any], int] | None:
    """(those of Facts that say something of it, the place where it is done), None where it is little.

    phases: of all stacks. causes: for each row of work a place in CAUSES. whole_ns: what the part is of.
    """
    saves = phases.of_stack == phases.names.index(CHECKPOINT)
    chosen = saves[work.rows["stack"]] & (work.rows["share"] < IDLE)
    saving_ns = int(work.rows["ns"][chosen].sum())
    if saving_ns < _LEAST * max(whole_ns, 1):
        return None
    functions = np.append(function_of_frames(profile.frames), -1)
    at, _ = top_place(work, chosen, functions, in_python=True)
    found = dict(
        saving_part=saving_ns / whole_ns,
        saving_mix=mix_of(cause_ns(work.rows[chosen], causes[chosen])),
        saving_where=place_text(profile.frames[at]) if at >= 0 else "",
    )
    return found, at
