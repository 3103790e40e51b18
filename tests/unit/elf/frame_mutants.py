"""Damaged files for the fuzz tests: a sound file with call frames in, endless variants of it out."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfError, ElfImage
from tests.fuzz.mutations import damage
from tests.unit.elf.frame_builder import CODE, FrameBuilder, uleb

_INSTRUCTIONS = (
    *(b"\x0a", b"\x0b", b"\x41", b"\x0e\x10", b"\x86\x02", b"\xc6", b"\x0c\x06\x10", b"\x0d\x07", b"\x07\x10"),
    *(b"\x0f\x03\x76\x78\x06", b"\x10\x06\x02\x76\x00", b"\x2e\x10", b"\x02\x07", b"\x03\x01\x01", b"\x12\x06\x7e"),
    *(b"\x05\x06\x02", b"\x06\x06", b"\x11\x10\x01", b"\x16\x06\x02\x76\x00", b"\x04\x01\x00\x00\x00", b"\x13\x7c"),
)


def peak_mebibytes() -> float:
    """Of this program; ru_maxrss would count what the process was before it became this program."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


@dataclass
class Cost:
    """The worst of all: CPU seconds of one decoding, and the peak of memory in MiB."""

    seconds: float = 0.0
    mebibytes: float = 0.0
    refused: int = 0


def seed_file(rng: random.Random, debug: bool) -> bytes:
    """A sound file: some CIEs, some functions, some 2 KB."""
    builder = FrameBuilder(debug)
    letters = (b"",) if debug else (b"zR", b"zR", b"zRS", b"z")
    for index in range(24):
        if index % 6 == 0:
            augmentation = rng.choice(letters)
            encoding = 0x1B if b"R" in augmentation else 0
            cie = builder.cie(augmentation=augmentation, data=b"\x1b" if encoding else b"", encoding=encoding)
        program = b"".join(rng.choice(_INSTRUCTIONS) for _ in range(rng.randrange(20)))
        builder.fde(cie, CODE + index * 64, 1 + rng.randrange(64), program + uleb(0))
    return builder.elf(with_header=rng.random() < 0.7)


def mutants(seed: int, files: int = 50) -> Iterator[bytes]:
    """Endless, the same for the same seed."""
    rng = random.Random(seed)
    sound = [seed_file(rng, debug=index % 4 == 0) for index in range(files)]
    while True:
        data = bytearray(rng.choice(sound))
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            damage(rng, data)
        yield bytes(data)


def decode_in_memory(content: bytes) -> CallFrames | None:
    """None when the file is refused; anything but ElfError is for the caller to see."""
    fd = os.memfd_create("mutant")
    os.write(fd, content)
    try:
        with ElfImage(fd) as image:
            return read_call_frames(image)
    except ElfError:
        return None


def try_many(seed: int, count: int) -> Cost:
    """Decodes so many mutants and looks at what they gave."""
    cost = Cost()
    source = mutants(seed)
    for _ in range(count):
        content = next(source)
        start_s = time.process_time()
        frames = decode_in_memory(content)
        cost.seconds = max(cost.seconds, time.process_time() - start_s)
        if frames is None:
            cost.refused += 1
        else:
            check(frames)
    cost.mebibytes = peak_mebibytes()
    return cost


def check(frames: CallFrames) -> None:
    """What holds for every answer."""
    assert len(frames.address) == len(frames.rule)
    assert (frames.address[1:] > frames.address[:-1]).all()
    assert not len(frames.rule) or int(frames.rule.max()) < len(frames.rules)
    assert frames.unsupported_count >= 0 and frames.function_count >= len(frames.function_starts)
    assert (frames.function_ends > frames.function_starts).all()
    if len(frames.address):
        assert frames.rule[-1] == 0  # what follows the last function has no rule
