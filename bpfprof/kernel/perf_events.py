"""What can be counted beside the clock: events by perf's names, and words of a command line to such names."""

from __future__ import annotations

_HARDWARE, _SOFTWARE, _CACHE = 0, 1, 3  # enum perf_type_id, include/uapi/linux/perf_event.h
CLOCK = (_SOFTWARE, 0)  # PERF_COUNT_SW_CPU_CLOCK
_LEVEL_1, _LAST_LEVEL, _DATA_TLB, _CODE_TLB = 0, 2, 3, 4  # enum perf_hw_cache_id; reads are operation 0
_MISS = 1 << 16  # PERF_COUNT_HW_CACHE_RESULT_MISS
# Name -> (perf_event_attr.type, config): enum perf_hw_id, perf_sw_ids and perf_hw_cache_id. The names and synonyms are
# those of `perf list`. Software events that x86-64 never has are left out.
EVENTS = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache-references": (_HARDWARE, 2),
    "cache-misses": (_HARDWARE, 3),
    "branches": (_HARDWARE, 4),
    "branch-misses": (_HARDWARE, 5),
    "bus-cycles": (_HARDWARE, 6),
    "stalled-cycles-frontend": (_HARDWARE, 7),
    "stalled-cycles-backend": (_HARDWARE, 8),
    "ref-cycles": (_HARDWARE, 9),
    "L1-dcache-loads": (_CACHE, _LEVEL_1),
    "L1-dcache-load-misses": (_CACHE, _LEVEL_1 | _MISS),
    "LLC-loads": (_CACHE, _LAST_LEVEL),
    "LLC-load-misses": (_CACHE, _LAST_LEVEL | _MISS),
    "dTLB-loads": (_CACHE, _DATA_TLB),
    "dTLB-load-misses": (_CACHE, _DATA_TLB | _MISS),
    "iTLB-load-misses": (_CACHE, _CODE_TLB | _MISS),
    "page-faults": (_SOFTWARE, 2),
    "minor-faults": (_SOFTWARE, 5),
    "major-faults": (_SOFTWARE, 6),
    "context-switches": (_SOFTWARE, 3),
    "cpu-migrations": (_SOFTWARE, 4),
}
_SYNONYMS = {
    "cpu-cycles": "cycles",
    "branch-instructions": "branches",
    "idle-cycles-frontend": "stalled-cycles-frontend",
    "idle-cycles-backend": "stalled-cycles-backend",
    "faults": "page-faults",
    "cs": "context-switches",
    "migrations": "cpu-migrations",
}
_ALWAYS_SAMPLED = ("cpu-clock", "task-clock")
_MOST = 4  # of one recording: x86-64 CPUs have four counters at least, and a table has room for so many columns


def parse_events(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names of EVENTS, each once, in the order given: each text is one or several joined by commas.

    The clocks add nothing, as CPU time is sampled always. Raises ValueError for anything else.
    """
    names: dict[str, None] = {}
    of_lower = {name.lower(): name for name in EVENTS} | _SYNONYMS
    for word in ",".join(texts).split(",") if texts else ():
        name = of_lower.get(word.strip().lower(), "")
        if name:
            names[name] = None
        elif word.strip().lower() not in _ALWAYS_SAMPLED:
            raise ValueError(f"there is no event {word.strip()!r}; they are {', '.join(EVENTS)}")
    if len(names) > _MOST:
        raise ValueError(f"these are more than {_MOST} events")
    return tuple(names)


def is_hardware(name: str) -> bool:
    """Whether the CPU itself counts the event."""
    return EVENTS[name][0] != _SOFTWARE
