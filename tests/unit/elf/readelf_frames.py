"""What `readelf -wF` (binutils) says of a file's call frames, and the same words for our own rows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np

from bpfprof.elf.cfi.rules import FLAG_IN_REGISTER, CfaKind, FramePointerKind, Reason
from bpfprof.elf.cfi.tables import CallFrames

Words = tuple[str, str, str]  # CFA, rbp, return address
GAP: Words = ("gap", "", "")

_CIE = re.compile(r"([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE ")
_FDE = re.compile(r"[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_NAME = re.compile(r" \(r\w+\)")  # readelf says "r10 (r10)" where a register was copied to another
_REGISTERS = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)))


def readelf_rows(path: Path) -> dict[int, Words]:
    """Address -> what holds from there on; a gap begins where a function ends and no other begins."""
    command = ["readelf", "--debug-dump=frames-interp", "--wide", str(path)]
    text = subprocess.run(command, capture_output=True, text=True).stdout  # its status tells of missing debug files
    rows: dict[int, Words] = {}
    of_cie: dict[str, Words] = {}
    ends: list[int] = []
    columns: list[str] = []
    cie, start, end = "", 0, 0
    for line in text.splitlines():
        if match := _FDE.match(line):
            start, end = (int(number, 16) for number in match.groups()[1:])
            ends.append(end)
            if start < end and match[1] in of_cie:
                rows[start] = of_cie[match[1]]  # a program without instructions shows no row
        elif match := _CIE.match(line):
            cie, end = match[1], -1
        elif line[:6] == "   LOC":
            columns = line.split()
        elif line and line[0] in "0123456789abcdef" and columns:
            fields = dict(zip(columns, _NAME.sub("", line).split()))
            saved = fields.get("rbp", "u")
            row = (fields["CFA"], "" if saved in "us" else saved, fields.get("ra", "u"))
            if end < 0:
                of_cie[cie] = row
            elif start <= int(fields["LOC"], 16) < end:
                rows[int(fields["LOC"], 16)] = row
        elif not line:
            columns = []
    for address in ends:
        rows.setdefault(address, GAP)
    return rows


def words(frames: CallFrames) -> list[Words | None]:
    """For each rule what readelf would say; None for UNSUPPORTED."""
    return [_words_of(rule) for rule in frames.rules]


def _words_of(rule: np.void) -> Words | None:
    kind = CfaKind(rule["cfa_kind"])
    if kind == CfaKind.UNSUPPORTED:
        return None
    if kind == CfaKind.NO_RULE:
        return GAP
    registers = {CfaKind.RSP: "rsp", CfaKind.RBP: "rbp", CfaKind.REGISTER: _REGISTERS[rule["cfa_extra"] & 15]}
    cfa = f"{registers[kind]}{rule['cfa_offset']:+d}" if kind in registers else "exp"
    saved = {
        FramePointerKind.SAME: "",
        FramePointerKind.AT_CFA: f"c{rule['fp_offset']:+d}",
        FramePointerKind.AT_RBP: "exp",
        FramePointerKind.AT_RSP: "exp",
        FramePointerKind.LOST: "lost",
    }[FramePointerKind(rule["fp_kind"])]
    ra = {CfaKind.SIGNAL_FRAME: "exp", CfaKind.END_OF_STACK: "u"}.get(kind, f"c{rule['ra_offset']:+d}")
    if rule["flags"] & FLAG_IN_REGISTER:
        ra = f"r{rule['ra_offset']}"
    return cfa, saved, ra


def differences(frames: CallFrames, oracle: dict[int, Words]) -> tuple[list[str], int]:
    """Every address where the two disagree, and the number of compared rows; UNSUPPORTED ones are left out."""
    ours = words(frames)
    addresses = np.unique(np.concatenate((np.array(sorted(oracle), np.uint64), frames.address)))
    theirs_at = np.array(sorted(oracle), np.uint64)
    their_index = np.searchsorted(theirs_at, addresses, side="right") - 1
    our_index = np.searchsorted(frames.address, addresses, side="right") - 1
    found: list[str] = []
    for address, their, our in zip(addresses.tolist(), their_index.tolist(), our_index.tolist()):
        expected = oracle[int(theirs_at[their])] if their >= 0 else GAP
        got = ours[frames.rule[our]] if our >= 0 else GAP
        if got is not None and got != expected and not (got[0] == "exp" == expected[0] and got[2] == "u"):
            if got[2] == expected[2] == "u":
                continue  # the end of the stack: nothing else matters
            found.append(f"{address:#x}: readelf {expected}, we {got}")
    return found, len(addresses)


def share_unsupported(frames: CallFrames) -> float:
    """Functions with a part that has no rule, of all."""
    assert set(frames.reasons) <= {reason.text for reason in Reason}
    return frames.unsupported_count / max(1, frames.function_count)
