"""A profile of several ranks of one training -> the sentence on the one that the others wait for, where one is late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.query.answer.percent import percent
from bpfprof.query.steps.rank_differences import Cause, Comparison, compare, is_stopped
from bpfprof.query.steps.ranks import CPU_COLLECTION, CPU_NATIVE, CPU_PYTHON, READY, RankLoop, rank_loops
from bpfprof.query.steps.slow_network import SlowNetwork
from bpfprof.query.steps.steps import StepsWanted
from bpfprof.query.threads.cpu_throttles import cpus_text, group_text
from bpfprof.query.work.places import place_text
from bpfprof.query.work.shares import OF_REASON

_LATE = 0.2  # of a step: a rank that is later by so much bounds them all
# By what the slowest does more of; each with a time in it. Of other states, words of reason_text(), it waits.
_SAYS = {
    CPU_PYTHON: "computes {} more in Python",
    CPU_NATIVE: "computes {} more in native code",
    CPU_COLLECTION: "collects garbage for {} more",
    READY: "waits {} more for a CPU (ready)",
    "sleep": "sleeps {} more",
    "disk": "waits {} more for a disk (disk)",
}
_BOUNDS = {CPU_PYTHON: "python", CPU_NATIVE: "native", CPU_COLLECTION: "python", READY: "ready"}
# A poll may be for anything.
_BOUNDS |= {word: share for word, share in OF_REASON.items() if word != "poll" and share != "other"}


def late_facts(profile: Profile, loops: tuple[int, ...]) -> tuple[dict[str, Any], int]:
    """(those of Facts that say something of a rank that is late, what it is late by, a place in Profile.frames, -1: not
    known); none where fewer than two processes run steps, or none is late by much. loops: threads that run steps."""
    if len({profile.threads[thread].pid for thread in loops}) < 2:
        return {}, -1
    found = _compared(profile)
    if found is None:
        return {}, -1
    step_ns = found.parts[found.longest].mean_own_ns + found.parts[found.longest].mean_waits_ns
    if found.network is not None:
        facts = {
            "late": network_sentence(found, found.network, _ms),
            "late_bound": "net",
            "late_part": found.network.wait_ns / max(step_ns, 1.0),
        }
        return facts, _place(profile, found.network.function) if found.network.function is not None else -1
    if found.cause is None:
        return {}, -1
    late_part = found.excess_ns / max(step_ns, 1.0)
    if late_part < _LATE:
        return {}, -1
    frame = found.cause.function.function
    facts = {
        "late": _sentence(found, found.cause),
        "late_bound": _BOUNDS.get(found.cause.state.state, "unknown"),
        "late_part": late_part,
    }
    return facts, _place(profile, frame) if frame is not None else -1


def says(state: str, more: str) -> str:
    """What it does more of, and how much more."""
    return _SAYS.get(state, f"waits {{}} more ({state})").format(more)


def network_sentence(found: Comparison, network: SlowNetwork, text: Callable[[float], str]) -> str:
    """text: of a time, in nanoseconds."""
    a_step = "of each second" if found.by_second else "a step"
    if network.place < 0:
        names = " and ".join(each.name for each in found.loops)
        told = f"The network between {names} is slow: a round trip takes {text(network.ns)}"
    else:
        told = f"{found.loops[network.place].subject} is behind a slow network: a round trip takes {text(network.ns)}"
        told += f", between others {text(network.others_ns)}" if network.others_ns else ""
    where = f", most in {place_text(network.function)}" if network.function is not None else ""
    return f"{told}; each waits {text(network.wait_ns)} {a_step} in communication{where}."


def limit_text(loop: RankLoop, state: str) -> str:
    """`, stopped by a CPU limit (0.2 CPUs of control group /x, used up in 87% of its periods)`; "": by none."""
    if state != READY or loop.throttle is None or not is_stopped(loop):
        return ""
    cpus, part = cpus_text(loop.throttle.cpus), percent(loop.throttle.part)
    return f", stopped by a CPU limit ({cpus} of {group_text(loop.throttle)}, used up in {part} of its periods)"


def _compared(profile: Profile) -> Comparison | None:
    loops, _ = rank_loops(profile, "", StepsWanted())
    try:
        return compare(loops) if len(loops) > 1 else None
    except ValueError:  # they have nothing by which they can be compared
        return None


def _sentence(found: Comparison, cause: Cause) -> str:
    said = says(cause.state.state, _ms(cause.state.more_ns))
    phase = f" in {cause.phase.phase}" if cause.phase.phase != "other" else ""
    where = f", most in {place_text(cause.function.function)}" if cause.function.function is not None else ""
    limit = limit_text(found.loops[found.longest], cause.state.state)
    waits = "The others wait" if len(found.loops) > 2 else "The other one waits"
    late = f"{found.loops[found.longest].subject} is late by {_ms(found.excess_ns)} a step"
    waited_in = f", in {found.waited_in}" if found.waited_in else ""
    return f"{late}: it {said}{phase}{where}{limit}. {waits} {_ms(found.others_wait_ns)} a step for it{waited_in}."


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"


def _place(profile: Profile, wanted: Frame) -> int:
    return next((place for place, frame in enumerate(profile.frames) if frame == wanted), -1)
