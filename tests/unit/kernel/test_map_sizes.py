"""Sizes of maps, by how much memory there is."""

from __future__ import annotations

import pytest

from bpfprof import abi
from bpfprof.kernel.map_sizes import map_sizes, shared

MB = 1 << 20
RINGS = ("BP_EVENT_RING_BYTES", "BP_STACK_RING_BYTES", "BP_COPY_RING_BYTES")


@pytest.mark.parametrize(
    ("memory_mb", "rings_mb", "table_mb"),
    [(256, 2, 32), (480, 4, 64), (512, 4, 64), (985, 8, 128), (1024, 8, 128), (1980, 16, 256), (1 << 20, 16, 256)],
)
def test_less_memory_less_of_it(memory_mb: int, rings_mb: int, table_mb: int) -> None:
    sizes = map_sizes(memory_mb * MB)
    assert sum(sizes[name] for name in RINGS) == rings_mb * MB
    assert shared(256, memory_mb * MB) == table_mb
    assert sum(sizes[name] for name in RINGS) <= memory_mb * MB / 100


@pytest.mark.parametrize("memory_bytes", [0, 1, 64 * MB])
def test_there_is_a_least_size(memory_bytes: int) -> None:
    """A ring is some pages, and a power of two."""
    for name, size in map_sizes(memory_bytes).items():
        assert size == abi.CONSTANTS[name] >> 4 and size & size - 1 == 0 and size >= 1024
