"""Random changes of a stack: it is taken for the one before if and only if nothing changed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.ebpf_host.python_image import LAYOUTS, Frame
from tests.ebpf_host.sleeper import (
    C_STACK,
    FRAME_STEP,
    FRAMES,
    HEAP,
    NATIVE,
    REGISTERS,
    RETURNS,
    Sleeper,
    frames_in_chunk,
)


def scattered(chance: random.Random) -> list[Frame]:
    """Up to FRAMES frames: some in the chunk, generators between them in the heap, some on the C stack."""
    frames = frames_in_chunk(chance.randrange(1, FRAMES + 1))
    elsewhere = [start + 72 + FRAME_STEP * n for start in (HEAP, C_STACK) for n in range(40)]
    for n, address in zip(chance.sample(range(len(frames)), len(frames) // 3), elsewhere, strict=False):
        frames[n] = replace(frames[n], address=address)
    return frames


@pytest.mark.parametrize("version", LAYOUTS)
def test_random_changes(sleeper: Sleeper, version: str) -> None:
    """Whatever changes within what is looked at: the key is the same if and only if the stack is."""
    chance, keys, walks, sleeper.version = random.Random(3), {}, 0, version
    for number in range(400):
        if number % 100 == 0:
            first = frames_in_chunk(FRAMES) if number == 0 else scattered(chance)
        sleeper.frames, native, registers = list(first), list(NATIVE), REGISTERS
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            n = chance.randrange(len(first))
            sleeper.change(n, instruction=first[n].instruction + 2 * chance.randrange(2))
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            native[chance.randrange(1, RETURNS + 1)] += chance.choice((0, 0x40))
        if chance.random() < 0.2:
            registers = replace(registers, others={12: chance.randrange(4)}, bp=chance.randrange(4))
        sleeper.native, sleeper.registers = tuple(native), registers
        content = tuple(frame.record for frame in sleeper.frames), sleeper.native
        key = sleeper.wait()
        assert keys.setdefault(content, key) == key
        walks += sleeper.walk_calls > 0
    assert len(set(keys.values())) == len(keys) > 50 and 50 < walks < 350
