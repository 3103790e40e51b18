"""Facts -> the sentences of verdicts on devices, and on threads that wait for each other on a CPU."""

from __future__ import annotations

from bpfprof.query.answer.facts import Facts
from bpfprof.query.answer.percent import percent
from bpfprof.query.work.shares import GPU, SPIN

_LATE = 0.5  # of the working time in frameworks that tell a device what to do
_LAUNCHES = 0.03  # and in the calls that launch it
_WAITS = 0.25  # of the working time: a device for which a program waits so much is not waiting for it
_FEW = 9.95  # launches: less has a decimal
_SPREAD = 0.1  # of its share: a place with less says nothing


def place_of(facts: Facts, before: str = ": ") -> str:
    """`: parse (x.py:12)`, with its part where that is not all."""
    if not facts.where:
        return ""
    if facts.where_part < _SPREAD:
        return ", in many places"
    return f"{before}{facts.where}" + (f", {percent(facts.where_part)} of it" if facts.where_part < 0.9 else "")


def waits_for_gpu(facts: Facts) -> str:
    """What of it is waited for."""
    part = f"{facts.said(facts.part)} of the time"
    call = f", in {facts.gpu_call}" if facts.gpu_call else ""
    what = {
        "upload": f"Copies pageable memory to the GPU {part}",
        "download": f"Copies from the GPU to pageable memory {part}",
        "pageable": f"Copies pageable memory to or from the GPU {part}",
        "copy": f"Copies to or from the GPU {part}",
        "memory": f"Takes and gives back memory of the GPU {part}",
        "queue": f"Waits for the GPU {part}, whose queue is full",
    }.get(facts.gpu_does, f"Waits for the GPU {part}")
    return f"{what}{place_of(facts)}{call}."


def gpu_advice(facts: Facts) -> str:
    """What to try."""
    return {
        "upload": "pinned memory (pin_memory=True), copied with non_blocking=True",
        "download": "copy back less often, into pinned memory with non_blocking=True",
        "pageable": "pinned memory, and copies beside what the GPU computes (non_blocking=True)",
        "memory": "keep it for the next step (no empty_cache() in a loop)",
        "queue": "the host is early enough: make what the GPU computes faster",
        "copy": "pinned memory, and copies beside what the GPU computes (non_blocking=True)",
    }.get(facts.gpu_does, "wait less often; else make what the GPU computes faster")


def is_host_late(facts: Facts) -> bool:
    """Whether a device has to wait for what it is to do."""
    feeds = facts.feeding_part >= _LATE and facts.launch_part >= _LAUNCHES
    return feeds and facts.parts[GPU] < min(_WAITS, facts.feeding_part)


def host_late(facts: Facts) -> str:
    """With how many launches there are, where calls were counted."""
    number = f"{facts.launches:,.{1 if facts.launches < _FEW else 0}f}"
    counted = f"{number} launches of {facts.launch_ns / 1000:.0f} us a {facts.launches_in}; "
    return (
        f"The host is late: {counted if number != '0.0' else ''}it spends {facts.said(facts.feeding_part)} of the time "
        f"telling the GPU what to do, {facts.said(facts.launch_part)} in launches{place_of(facts, ', most in ')}; it "
        f"waits for the GPU {facts.of(GPU)}."
    )


def spins(facts: Facts) -> str:
    """Whose threads, where one pool has most of them."""
    whose = f", {facts.pool_threads} threads of {facts.pool} for each other" if facts.pool and facts.spin_part else ""
    return f"Spins {facts.of(SPIN)} of the time: waits on a CPU{whose}{place_of(facts, '; most in ')}."


def spin_advice(facts: Facts) -> str:
    """Of pools with a setting of their own, what lets them sleep."""
    if facts.pool == "OpenMP" and facts.spin_part:
        return "even out what its threads do, or use fewer; OMP_WAIT_POLICY=passive lets them sleep"
    if facts.pool and facts.spin_part:
        return f"even out what its threads do, or use fewer ({facts.pool_setting})"
    return "wait in the kernel (a lock, a condition, an event) instead of looking again and again"
