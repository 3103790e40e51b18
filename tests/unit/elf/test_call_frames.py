"""Every kind of rule, from sections written by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.cfi.rules import RULE, CfaKind, FramePointerKind
from bpfprof.elf.cfi.tables import CallFrames
from bpfprof.elf.image import ElfError
from tests.unit.elf.frame_builder import CODE, EH_FRAME, FrameBuilder, decode, elf_file, sleb, uleb

Row = tuple[int, CfaKind, int]  # address after CODE, kind, offset
SIZE = 0x100
PLT = b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"
IBT_PLT = PLT.replace(b"\x3b", b"\x3a")
RSP, RBP, GAP = CfaKind.RSP, CfaKind.RBP, CfaKind.NO_RULE


def block(code: bytes) -> bytes:
    return uleb(len(code)) + code


def one(folder: Path, code: bytes, **cie: object) -> CallFrames:
    """A file with one function of SIZE bytes at CODE."""
    builder = FrameBuilder()
    builder.fde(builder.cie(**cie), CODE, SIZE, code)  # type: ignore[arg-type]
    return decode(builder.elf(), folder)


def rows(frames: CallFrames) -> list[Row]:
    rules = frames.rules[frames.rule]
    return [
        (int(address) - CODE, CfaKind(rule["cfa_kind"]), int(rule["cfa_offset"]))
        for address, rule in zip(frames.address, rules)
    ]


def rule(frames: CallFrames, index: int = 0) -> np.void:
    found: np.void = frames.rules[frames.rule[index]]
    return found


ADVANCES = {
    "6 bits": (b"\x44", 4),
    "8 bits": (b"\x02\x80", 0x80),
    "16 bits": (b"\x03\x80\x00", 0x80),
    "32 bits": (b"\x04\x80\x00\x00\x00", 0x80),
    "twice": (b"\x41\x42", 3),
    "nothing between": (b"\x40\x00\x41", 1),
}


@pytest.mark.parametrize(("code", "distance"), ADVANCES.values(), ids=ADVANCES)
def test_advances(code: bytes, distance: int, tmp_path: Path) -> None:
    frames = one(tmp_path, code + b"\x0e\x10")
    assert rows(frames) == [(0, RSP, 8), (distance, RSP, 16), (SIZE, GAP, 0)]


def test_the_code_factor_counts(tmp_path: Path) -> None:
    assert rows(one(tmp_path, b"\x44\x0e\x10", factors=(4, -8)))[1] == (16, RSP, 16)


CFAS = {
    "def_cfa": (b"\x0c\x06\x10", (RBP, 16, 0)),
    "def_cfa_sf": (b"\x12\x07\x7e", (RSP, 16, 0)),
    "def_cfa_register": (b"\x0d\x06", (RBP, 8, 0)),
    "def_cfa_offset": (b"\x0e\x80\x01", (RSP, 128, 0)),
    "def_cfa_offset_sf": (b"\x13\x7d", (RSP, 24, 0)),
    "large": (b"\x0e" + uleb(0x7FFFFFFF), (RSP, 0x7FFFFFFF, 0)),
    "drap": (b"\x0c\x0a\x00", (CfaKind.REGISTER, 0, 10)),
    "drap saved": (b"\x0f\x03\x76\x78\x06", (CfaKind.DEREF_RBP, -8, 0)),
    "openssl": (b"\x0f" + block(b"\x77" + sleb(152) + b"\x06\x23\x08"), (CfaKind.DEREF_RSP, 152, 8)),
    "literal added": (b"\x0f" + block(b"\x77\x10\x06\x38\x22"), (CfaKind.DEREF_RSP, 16, 8)),
    "expression of a register": (b"\x0f" + block(b"\x76\x10"), (RBP, 16, 0)),
    "plt": (b"\x0f" + block(PLT), (CfaKind.PLT, 8, 11)),
    "plt with ibt": (b"\x0f" + block(IBT_PLT), (CfaKind.PLT, 8, 10)),
    "args_size": (b"\x2e\x10\x0e\x20", (RSP, 32, 0)),
    "end of stack": (b"\x07\x10", (CfaKind.END_OF_STACK, 0, 0)),
}


@pytest.mark.parametrize(("code", "expected"), CFAS.values(), ids=CFAS)
def test_canonical_frame_address(code: bytes, expected: tuple[CfaKind, int, int], tmp_path: Path) -> None:
    frames = one(tmp_path, b"\x41" + code)
    got = rule(frames, 1)
    assert (CfaKind(got["cfa_kind"]), got["cfa_offset"], got["cfa_extra"]) == expected
    assert not frames.reasons and got["flags"] == 0
    assert got["ra_offset"] == (0 if expected[0] == CfaKind.END_OF_STACK else -8)


FPS = {
    "untouched": (b"", (FramePointerKind.SAME, 0)),
    "offset": (b"\x86\x02", (FramePointerKind.AT_CFA, -16)),
    "offset_extended": (b"\x05\x06\x03", (FramePointerKind.AT_CFA, -24)),
    "offset_extended_sf": (b"\x11\x06\x7f", (FramePointerKind.AT_CFA, 8)),
    "gnu_negative_offset_extended": (b"\x2f\x06\x01", (FramePointerKind.AT_CFA, 8)),
    "expression of rbp": (b"\x10\x06\x02\x76\x00", (FramePointerKind.AT_RBP, 0)),
    "expression of rsp": (b"\x10\x06\x02\x77\x08", (FramePointerKind.AT_RSP, 8)),
    "expression of another": (b"\x10\x03\x02\x76\x00", (FramePointerKind.SAME, 0)),
    "undefined": (b"\x07\x06", (FramePointerKind.LOST, 0)),
    "same_value": (b"\x86\x02\x08\x06", (FramePointerKind.SAME, 0)),
    "register": (b"\x09\x06\x0c", (FramePointerKind.LOST, 0)),
    "val_offset": (b"\x14\x06\x02", (FramePointerKind.LOST, 0)),
    "val_expression": (b"\x16\x06\x02\x76\x00", (FramePointerKind.LOST, 0)),
    "restore": (b"\x86\x02\xc6", (FramePointerKind.SAME, 0)),
    "restore_extended": (b"\x86\x02\x06\x06", (FramePointerKind.SAME, 0)),
    "other registers": (b"\x83\x02\xc3\x8c\x03\x05\x0c\x04\x08\x03", (FramePointerKind.SAME, 0)),
}


@pytest.mark.parametrize(("code", "expected"), FPS.values(), ids=FPS)
def test_frame_pointer(code: bytes, expected: tuple[FramePointerKind, int], tmp_path: Path) -> None:
    frames = one(tmp_path, code)
    assert (FramePointerKind(rule(frames)["fp_kind"]), rule(frames)["fp_offset"]) == expected
    assert not frames.reasons


def test_restore_is_to_the_cie(tmp_path: Path) -> None:
    cie = b"\x0c\x07\x08\x90\x01\x86\x05"
    frames = one(tmp_path, b"\x86\x02\x41\xc6", program=cie)
    assert [int(rule(frames, index)["fp_offset"]) for index in (0, 1)] == [-16, -40]


def test_signal_frame(tmp_path: Path) -> None:
    """As glibc's __restore_rt: sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c."""
    program = b"\x0f" + block(b"\x77" + sleb(160) + b"\x06")
    for register, offset in ((6, 120), (7, 160), (16, 168)):
        program += b"\x10" + bytes([register]) + block(b"\x77" + sleb(offset))
    frames = one(tmp_path, program, augmentation=b"zRS")
    assert tuple(rule(frames)) == (CfaKind.SIGNAL_FRAME, FramePointerKind.AT_RSP, 1, 0, 160, 120, 168)
    assert not frames.reasons


def test_remember_and_restore_nest(tmp_path: Path) -> None:
    """Each level brings back what held at its own remember_state, also when that was brought back itself."""
    program = b"\x0e\x10\x86\x02\x0a" + b"\x41\x0e\x20\x0a" + b"\x41\x0e\x30\x0b" + b"\x41\x0b"
    program += b"\x41\x0a\x0e\x40\xc6" + b"\x41\x0b"
    frames = one(tmp_path, program)
    expected = [(0, 16), (1, 32), (2, 32), (3, 16), (4, 64), (5, 16)]
    merged = [row for index, row in enumerate(expected) if index == 0 or row[1] != expected[index - 1][1]]
    assert [(at, offset) for at, kind, offset in rows(frames) if kind == RSP] == merged
    assert [int(rule(frames, index)["fp_offset"]) for index in range(len(merged))] == [-16, -16, -16, 0, -16]


def test_a_long_chain_of_restores(tmp_path: Path) -> None:
    frames = one(tmp_path, b"\x0e\x10" + b"\x0a\x0b" * 5000 + b"\x0a\x41\x0e\x20\x41\x0b")
    assert rows(frames) == [(0, RSP, 16), (1, RSP, 32), (2, RSP, 16), (SIZE, GAP, 0)]


AUGMENTATIONS = {
    "none": (b"", b"", 0x00),
    "z": (b"z", b"", 0x00),
    "zR": (b"zR", b"\x1b", 0x1B),
    "zPLR": (b"zPLR", b"\x9b\1\2\3\4\x1b\x1b", 0x1B),
    "zPLR absolute": (b"zPLR", b"\x00" + bytes(8) + b"\x00\x00", 0x00),
    "zPR without personality": (b"zPR", b"\xff\x1b", 0x1B),
    "zRS": (b"zRS", b"\x1b", 0x1B),
    "udata2": (b"zR", b"\x02", 0x02),
    "udata4": (b"zR", b"\x03", 0x03),
    "udata8": (b"zR", b"\x04", 0x04),
    "sdata4": (b"zR", b"\x0b", 0x0B),
    "pcrel sdata8": (b"zR", b"\x1c", 0x1C),
}


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(("letters", "data", "encoding"), AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_augmentations_and_encodings(letters: bytes, data: bytes, encoding: int, version: int, tmp_path: Path) -> None:
    frames = one(tmp_path, b"\x41\x0e\x10", augmentation=letters, data=data, encoding=encoding, version=version)
    assert rows(frames) == [(0, RSP, 8), (1, RSP, 16), (SIZE, GAP, 0)]
    assert frames.rules[frames.rule[0]]["flags"] == (1 if b"S" in letters else 0)


FAILURES = {
    "unknown instruction": b"\x3c",
    "truncated": b"\x00" * 2 + b"\x0e\x80\x80\x80\x80",
    "set loc": b"\x01" + bytes(8),
    "restore without remember": b"\x0a\x0b\x0b",
    "stack pointer elsewhere": b"\x87\x01",
    "cfa expression": b"\x0f\x02\x96\x01",
    "offset too large": b"\x0e" + uleb(1 << 31),
    "return address elsewhere": b"\x09\x10\x07",
    "no cfa": b"",
}


@pytest.mark.parametrize(("reason", "program"), FAILURES.items(), ids=FAILURES)
def test_a_failure_stays_in_its_function(reason: str, program: bytes, tmp_path: Path) -> None:
    builder = FrameBuilder()
    good = builder.cie()
    bad = builder.cie(program=b"\x90\x01") if reason == "no cfa" else good
    for index, (owner, code) in enumerate(((good, b"\x0e\x10"), (bad, program), (good, b"\x0e\x20"))):
        builder.fde(owner, CODE + index * SIZE, SIZE, code)
    frames = decode(builder.elf(), tmp_path)
    kinds = [(0, RSP, 16), (SIZE, CfaKind.UNSUPPORTED, 0), (2 * SIZE, RSP, 32), (3 * SIZE, GAP, 0)]
    assert rows(frames) == kinds
    assert frames.reasons == {reason: 1} and frames.unsupported_count == 1 and frames.function_count == 3


LOST = {
    "bad cie": {"program": b"\x0c\x07\x08\x90\x01", "factors": (1 << 20, -8)},
    "augmentation": {"augmentation": b"armcc+", "encoding": 0},
    "pointer encoding": {"data": b"\x09"},
}


@pytest.mark.parametrize(("reason", "cie"), LOST.items(), ids=LOST)
def test_functions_without_a_range_are_counted(reason: str, cie: dict[str, object], tmp_path: Path) -> None:
    builder = FrameBuilder()
    builder.fde(builder.cie(**cie), CODE, SIZE, b"")  # type: ignore[arg-type]
    builder.fde(builder.cie(), CODE + SIZE, SIZE, b"")
    frames = decode(builder.elf(), tmp_path)
    assert rows(frames) == [(SIZE, RSP, 8), (2 * SIZE, GAP, 0)]
    assert frames.reasons == {reason: 1} and frames.function_count == 2


def test_gaps_neighbours_and_overlaps(tmp_path: Path) -> None:
    builder = FrameBuilder()
    cie = builder.cie()
    for start, size, offset in ((0x300, 0x10, 24), (0, 0x10, 8), (0x10, 0x10, 8), (0x21, 0x10, 16), (0x28, 0x4, 32)):
        builder.fde(cie, CODE + start, size, b"\x0e" + uleb(offset))
    frames = decode(builder.elf(), tmp_path)
    gaps = [(0x20, GAP, 0), (0x2C, GAP, 0), (0x310, GAP, 0)]
    assert rows(frames) == sorted([(0, RSP, 8), (0x21, RSP, 16), (0x28, RSP, 32), (0x300, RSP, 24), *gaps])
    assert (frames.function_starts - np.uint64(CODE)).tolist() == [0, 0x10, 0x21, 0x28, 0x300]
    assert (frames.function_ends - np.uint64(CODE)).tolist() == [0x10, 0x20, 0x31, 0x2C, 0x310]


def test_file_order_is_not_address_order(tmp_path: Path) -> None:
    """Two neighbours in the section with the same rule, and another function between them in memory."""
    builder = FrameBuilder()
    cie = builder.cie()
    for index, offset in ((0, 8), (2, 8), (1, 16)):
        builder.fde(cie, CODE + index * SIZE, SIZE, b"\x0e" + uleb(offset))
    expected = [(0, RSP, 8), (SIZE, RSP, 16), (2 * SIZE, RSP, 8), (3 * SIZE, GAP, 0)]
    assert rows(decode(builder.elf(), tmp_path)) == expected


def test_advances_past_the_end_are_cut(tmp_path: Path) -> None:
    assert rows(one(tmp_path, b"\x04\xff\xff\xff\xff\x0e\x10")) == [(0, RSP, 8), (SIZE, GAP, 0)]


def test_without_a_table_the_section_is_walked(tmp_path: Path) -> None:
    builder = FrameBuilder()
    cie = builder.cie()
    builder.fde(cie, CODE, SIZE, b"\x0e\x10")
    builder.data += bytes(4)  # the end of what one object file brought
    builder.fde(cie, CODE + SIZE, SIZE, b"\x0e\x20")
    expected = [(0, RSP, 16), (SIZE, RSP, 32), (2 * SIZE, GAP, 0)]
    assert rows(decode(builder.elf(), tmp_path)) == rows(decode(builder.elf(with_header=False), tmp_path)) == expected
    broken = elf_file({".eh_frame": (EH_FRAME, bytes(builder.data)), ".eh_frame_hdr": (0, builder.header()[:-4])})
    assert rows(decode(broken, tmp_path)) == expected


@pytest.mark.parametrize("version", [1, 3, 4])
@pytest.mark.parametrize("compressed", [False, True])
def test_debug_frame(version: int, compressed: bool, tmp_path: Path) -> None:
    builder = FrameBuilder(debug=True)
    builder.fde(builder.cie(augmentation=b"", encoding=0, version=version), CODE, SIZE, b"\x41\x0e\x10")
    content = bytes(builder.data)
    if compressed:
        content = struct.pack("<IIQQ", 1, 0, len(content), 8) + zlib.compress(content)
    frames = decode(elf_file({".debug_frame": (0, content)}), tmp_path)
    assert rows(frames) == [(0, RSP, 8), (1, RSP, 16), (SIZE, GAP, 0)]


def both_sections(debug_frame: bytes) -> bytes:
    """.eh_frame with one function, the third of four, and a .debug_frame."""
    builder = FrameBuilder()
    builder.fde(builder.cie(), CODE + 2 * SIZE, SIZE, b"\x0e\x40")
    return elf_file({".eh_frame": (EH_FRAME, bytes(builder.data)), ".debug_frame": (0, debug_frame)})


def test_debug_frame_is_for_what_eh_frame_does_not_know(tmp_path: Path) -> None:
    debug = FrameBuilder(debug=True)
    cie = debug.cie(augmentation=b"", encoding=0)
    debug.fde(cie, CODE, SIZE, b"\x41\x0e\x10")
    debug.fde(cie, CODE + 2 * SIZE, SIZE, b"\x0e\x18")
    debug.fde(cie, CODE + 3 * SIZE, SIZE, b"\x0e\x18\x3c")
    frames = decode(both_sections(bytes(debug.data)), tmp_path)
    known = [(0, RSP, 8), (1, RSP, 16), (SIZE, GAP, 0), (2 * SIZE, RSP, 64)]
    assert rows(frames) == [*known, (3 * SIZE, CfaKind.UNSUPPORTED, 0), (4 * SIZE, GAP, 0)]
    assert frames.function_count == 4 and frames.reasons == {"unknown instruction": 1}
    damaged = struct.pack("<IIQQ", 1, 0, 100, 8) + b"no zlib"
    assert rows(decode(both_sections(damaged), tmp_path)) == [(2 * SIZE, RSP, 64), (3 * SIZE, GAP, 0)]


def test_files_without_frames(tmp_path: Path) -> None:
    for sections in ({}, {".eh_frame": (EH_FRAME, b"")}, {".eh_frame": (EH_FRAME, bytes(4))}):
        frames = decode(elf_file(sections), tmp_path)
        assert len(frames.address) == frames.function_count == 0
        assert frames.rules.dtype == RULE


def test_what_is_refused(tmp_path: Path) -> None:
    for content in (
        elf_file({}, machine=183),
        elf_file({}, kind=1),
        elf_file({".debug_frame": (0, struct.pack("<IIQQ", 1, 0, 100, 8) + b"no zlib")}),
        elf_file({".debug_frame": (0, struct.pack("<IIQQ", 1, 0, 1 << 40, 8))}),
    ):
        with pytest.raises(ElfError):
            decode(content, tmp_path)


def test_a_compressed_section_is_cut_at_its_size(tmp_path: Path) -> None:
    content = struct.pack("<IIQQ", 1, 0, 100, 8) + zlib.compress(bytes(64 << 20))
    assert decode(elf_file({".debug_frame": (0, content)}), tmp_path).function_count == 0
