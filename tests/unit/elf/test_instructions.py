"""Where instructions begin, against `objdump -d` (binutils), and which registers they write."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.asm.effects import ends_with_call
from bpfprof.elf.asm.lengths import PADDING_BYTES
from bpfprof.elf.asm.traced_rules import decode, traced_rules
from bpfprof.elf.cfi import tables as call_frames
from bpfprof.elf.cfi.rules import CallFrames
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.elf.leb128 import Ints
from tests.unit.elf.test_call_frames_oracle import REAL_FILES

_LINE = re.compile(rb"^ +([0-9a-f]+):\t", re.MULTILINE)
_BATCH = 2000
# AMD's XOP is not, which libcrypto has for old processors.
UNDERSTOOD = 0.999
REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)))


def begins(image: ElfImage, start: Ints, end: Ints) -> Iterator[tuple[Ints, int]]:
    """Addresses of instructions of each function that is understood, and which one it is."""
    for first in range(0, len(start), _BATCH):
        codes = [image.read(int(a), int(b - a)) or b"" for a, b in zip(start, end)][first : first + _BATCH]
        behind = np.cumsum([len(code) for code in codes])
        begin = behind - [len(code) for code in codes]
        content = np.frombuffer(b"".join(codes) + bytes(PADDING_BYTES), np.uint8)
        instructions, sound = decode(content, begin, behind)
        for number in np.flatnonzero(sound).tolist():
            low, high = np.searchsorted(instructions.at, (begin[number], behind[number]))
            yield instructions.at[low:high] - begin[number] + start[first + number], first + number


def by_objdump(path: Path, sections: tuple[str, ...]) -> Ints:
    """Addresses of all instructions of these sections, ascending."""
    command = ["objdump", "-d", "--no-show-raw-insn", *(f"--section={name}" for name in sections), str(path)]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    return np.unique(np.array([int(number, 16) for number in _LINE.findall(text)], np.int64))


@pytest.mark.second_tier
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump (binutils)")
@pytest.mark.parametrize("name", REAL_FILES)
def test_instructions_begin_where_objdump_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all functions of small files; of OpenBLAS those that are followed."""
    found: list[CallFrames] = []

    def keep(*arguments: object) -> CallFrames:
        found.append(traced_rules(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(call_frames, "traced_rules", keep)
    with ElfImage.open(str(REAL_FILES[name])) as image:
        frames = read_call_frames(image)
        start, end = frames.function_starts.astype(np.int64), frames.function_ends.astype(np.int64)
        if "openbla" in name:
            start, end = found[0].function_starts.astype(np.int64), found[0].function_ends.astype(np.int64)
        text = image.section(".text")
        assert text is not None
        inside = (start >= text.address) & (end <= text.address + text.size) & (start < end)
        # The FDE of a signal's return begins a byte before its code, where objdump is in a nop.
        theirs = by_objdump(REAL_FILES[name], (".text",))
        inside &= np.isin(start, theirs)
        start, end = start[inside], end[inside]
        understood = count = 0
        for ours, function in begins(image, start, end):
            low, high = np.searchsorted(theirs, (start[function], end[function]))
            assert np.array_equal(ours, theirs[low:high]), hex(start[function])
            understood, count = understood + 1, count + len(ours)
    print(f"{name}: {count} instructions of {understood} functions, {len(start) - understood} not understood")
    assert understood >= UNDERSTOOD * len(start) and count > 1000


WRITTEN = {
    "mov %eax,%r12d": "r12",
    "mov (%rsp),%rbx": "rbx",
    "mov %rbx,(%rsp)": "",
    "mov %al,%ch": "rcx",
    "mov %al,%bpl": "rbp",
    "mov $1,%r13b": "r13",
    "mov $0x1122334455667788,%r15": "r15",
    "xchg %rbx,%r14": "rbx r14",
    "xchg %rax,%r9": "rax r9",
    "cmp %rax,%rbx": "",
    "cmp $9,%rbx": "",
    "test $9,%ebx": "rax rdx",  # more than it writes: it shares its opcode with mul and div
    "neg %rbx": "rax rdx rbx",
    "addl $1,%ebx": "rbx",
    "mulq %rbx": "rax rdx",
    "imul $3,%rcx,%rbx": "rbx",
    "lea 8(%rsp),%rsi": "rsi",
    "push %r12": "rsp",
    "pop %r12": "rsp r12",
    "pushq 8(%rdi)": "rsp",
    "popq 8(%rdi)": "rsp",
    "leave": "rsp rbp",
    "call *%rbx": "rax rcx rdx rsi rdi r8 r9 r10 r11",
    "jmp *%rbx": "",
    "inc %r10": "r10",
    "setne %bl": "rbx",
    "setne %bh": "rbx",
    "cmove %rcx,%rbp": "rbp",
    "movzbl (%rdi),%ebp": "rbp",
    "bts $3,%rbx": "rbx",
    "bt $3,%rbx": "",
    "bswap %r11": "r11",
    "rep movsb": "rax rcx rsi rdi",
    "movq %xmm1,%rbx": "rbx",
    "movaps %xmm3,%xmm4": "",
    "vmovups %ymm3,(%rsi)": "",
    "vmovups %ymm12,%ymm5": "",
    "vmovq %xmm1,%r13": "r13",
    "vpextrq $1,%xmm5,%rbp": "rbp",
    "vmovmskps %ymm1,%r12d": "r12",
    "vcvttsd2si %xmm2,%rbp": "rbp",
    "vcvttsd2usi %xmm2,%rbp": "rbp",
    "vfmadd231pd %ymm3,%ymm1,%ymm5": "",
    "vfmadd231pd (%rbx){1to8},%zmm5,%zmm20": "",
    "kmovq %k1,%rbx": "rbx",
    "andn %rax,%rcx,%rbp": "rbp",
    "blsr %rax,%r12": "r12",
    "mulx %rax,%rbp,%r12": "rbp r12",
    "rorx $5,%rax,%rbp": "rbp",
    "pdep %rax,%rcx,%rbx": "rbx",
    "prefetcht0 64(%rsp)": "",
    "nopw %cs:0(%rax,%rax,1)": "",
}


@pytest.mark.skipif(shutil.which("as") is None or shutil.which("objcopy") is None, reason="no binutils")
def test_registers_that_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.s").write_text("\n".join(WRITTEN) + "\n")
    subprocess.run(["as", "-o", str(tmp_path / "a.o"), str(tmp_path / "a.s")], check=True)
    command = ["objcopy", "-O", "binary", "-j", ".text", str(tmp_path / "a.o"), str(tmp_path / "a.bin")]
    subprocess.run(command, check=True)
    code = (tmp_path / "a.bin").read_bytes()
    content = np.frombuffer(code + bytes(PADDING_BYTES), np.uint8)
    instructions, sound = decode(content, np.array([0]), np.array([len(code)]))
    assert sound.all() and len(instructions.at) == len(WRITTEN)
    for (text, expected), written in zip(WRITTEN.items(), instructions.written.tolist()):
        assert [name for number, name in enumerate(REGISTERS) if written >> number & 1] == expected.split(), text


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("e8 11 22 33 44", True),  # call 0x44332211
        ("90 90 ff d0", True),  # call *%rax
        ("90 41 ff d4", True),  # call *%r12
        ("90 90 ff 10", True),  # call *(%rax)
        ("ff 15 11 22 33 44", True),  # call *0x44332211(%rip)
        ("90 ff 53 18", True),  # call *0x18(%rbx)
        ("90 ff 14 c3", True),  # call *(%rbx,%rax,8)
        ("ff 54 24 08", True),  # call *8(%rsp)
        ("ff 94 c3 11 22 33 44", True),  # call *0x44332211(%rbx,%rax,8)
        ("ff 14 25 11 22 33 44", True),  # call *0x44332211
        ("ff 93 11 22 33 44", True),  # call *0x44332211(%rbx)
        ("e9 11 22 33 44", False),  # jmp 0x44332211
        ("90 90 ff e0", False),  # jmp *%rax
        ("90 90 ff 30", False),  # push (%rax)
        ("90 90 90 90 90 90 90", False),
        ("c3", False),
        ("", False),
    ],
)
def test_what_is_returned_to_follows_a_call(code: str, is_call: bool) -> None:
    assert ends_with_call(bytes.fromhex(code)) is is_call
