"""Damaged call frame sections: an answer or ElfError, in time and in little memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bpfprof.elf.cfi import records as call_frame_records
from bpfprof.elf.cfi import sections as call_frame_sections
from bpfprof.elf.cfi import tables as call_frames
from bpfprof.elf.cfi.rules import RULE_LIMIT, UNSUPPORTED_ID
from tests.unit.elf.frame_builder import CODE, FrameBuilder, uleb
from tests.unit.elf.frame_mutants import check, decode_in_memory, mutants, try_many
from tests.unit.elf.hostile_frames import cost_of, write_hostile
from tests.unit.measured import least_cpu_s

SEED = 20241121


@pytest.mark.second_tier
def test_a_few_thousand_mutants() -> None:
    cost = try_many(SEED, 2000)
    assert cost.seconds < 1
    assert 0 < cost.refused < 2000


def test_random_bytes_as_programs() -> None:
    rng = random.Random(SEED)
    for _ in range(50):
        builder = FrameBuilder()
        cie = builder.cie()
        for index in range(100):
            builder.fde(cie, CODE + index * 64, 64, rng.randbytes(rng.randrange(100)))
        frames = decode_in_memory(builder.elf())
        assert frames is not None and frames.function_count == 100
        check(frames)


def test_mutants_are_the_same_each_time() -> None:
    first, second = mutants(SEED), mutants(SEED)
    assert [next(first) for _ in range(20)] == [next(second) for _ in range(20)]


def _one_function(program: bytes) -> bytes:
    builder = FrameBuilder()
    builder.fde(builder.cie(), CODE, 0x10000, program)
    return builder.elf()


def _many_rules() -> bytes:
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(20):
        program = b"".join(b"\x41\x0e" + uleb(index * 5000 + step) for step in range(5000))
        builder.fde(cie, CODE + index * 0x8000, 0x8000, program)
    return builder.elf()


COSTLY = {
    "one long program": _one_function(b"\x41\x0e\x10\x41\x0e\x18" * 40_000),
    "too long a program": _one_function(b"\x41\x0e\x10" * 100_000),
    "only remember and restore": _one_function(b"\x0a\x0b" * 120_000),
    "deep remember": _one_function(b"\x0a" * 100_000 + b"\x0b" * 100_000),
    "one long number": _one_function(b"\x0e" + b"\x80" * 200_000),
    "many rules": _many_rules(),
    "all expressions differ": _one_function(b"".join(b"\x0f\x05\x77" + uleb(1 << 21 | n) for n in range(30_000))),
}


@pytest.mark.second_tier
@pytest.mark.parametrize("content", COSTLY.values(), ids=COSTLY)
def test_costly_files_are_not_slow(content: bytes) -> None:
    """Up to half a second."""
    assert least_cpu_s(lambda: decode_in_memory(content), 2) < 2
    frames = decode_in_memory(content)
    assert frames is not None and len(frames.rules) <= RULE_LIMIT
    check(frames)


@pytest.mark.second_tier
@pytest.mark.parametrize("kind", ["zeros", "CIEs", "short programs"])
def test_large_hostile_sections_are_bounded(kind: str, tmp_path: Path) -> None:
    """63 MiB of the worst; tests/benchmarks/decode_cost.py has more kinds, and should say less than 5 seconds.

    They take 180 to 220 MiB; libtensorflow_cc, which is no attack and has a symbol table besides, 390.
    """
    write_hostile(kind, tmp_path / "hostile")
    cost = cost_of(tmp_path / "hostile")
    assert cost.seconds < 8 and cost.peak_mib < 300
    left_out = sum(cost.reasons.get(reason, 0) for reason in ("too many functions", "too costly", "too many rows"))
    assert left_out > 0 and cost.functions >= left_out


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later functions of the section have no rules, earlier ones are whole."""
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(20):
        builder.fde(cie, CODE + index * 0x8000, 0x8000, b"\x41\x0e\x10\x41\x0e\x18" * 30_000)
    for name, reason in (("_WORK_LIMIT", "too costly"), ("_ROW_LIMIT", "too many rows")):
        with monkeypatch.context() as patch:
            patch.setattr(call_frames, name, 200_000)
            frames = decode_in_memory(builder.elf())
        assert frames is not None and set(frames.reasons) == {reason}
        check(frames)
        assert frames.function_count == len(frames.function_starts) == 20
        bad = frames.address[frames.rule == UNSUPPORTED_ID]
        assert len(bad) == 1 and (int(bad[0]) - CODE) // 0x8000 == 20 - frames.reasons[reason]


def test_functions_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(20):
        builder.fde(cie, CODE + index * 64, 64, b"")
    for with_header, left_out in ((True, 13), (False, 1)):
        monkeypatch.setattr(call_frame_sections, "RECORD_LIMIT", 7)
        monkeypatch.setattr(call_frame_records, "RECORD_LIMIT", 7)
        frames = decode_in_memory(builder.elf(with_header))
        assert frames is not None and frames.reasons == {"too many functions": left_out}
        assert len(frames.function_starts) == (7 if with_header else 6)  # the CIE is a record too
