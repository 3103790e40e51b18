"""How large the maps are that hold what is recorded: the memory there is in, sizes by the names of ebpf/abi.h out.

With 1.75 GiB or more they are those of abi.h: rings of 16 MiB and up to 80 MiB of threads. With half of that they are
half as large, and so on; what then does not fit is counted, as always.
"""

from __future__ import annotations

from bpfprof import abi

_WHOLE_BYTES = 7 << 28  # 2 GB as machines have them
_MOST_HALVINGS = 4
_SHARED = ("BP_EVENT_RING_BYTES", "BP_STACK_RING_BYTES", "BP_COPY_RING_BYTES", "BP_MAX_THREADS", "BP_MAX_PROCESSES")


def map_sizes(memory_bytes: int) -> dict[str, int]:
    """Powers of two, as rings must have."""
    return {name: shared(abi.CONSTANTS[name], memory_bytes) for name in _SHARED}


def shared(whole: int, memory_bytes: int) -> int:
    """What this machine may have of something."""
    halvings = 0
    while halvings < _MOST_HALVINGS and memory_bytes << halvings < _WHOLE_BYTES:
        halvings += 1
    return whole >> halvings
