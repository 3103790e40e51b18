"""Rules for assembly that has none: for each instruction of small functions, and of damaged and costly ones."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.asm.extent import functions_in
from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.effort import USUAL, Effort
from bpfprof.elf.image import ElfImage
from tests.fuzz.mutations import damage
from tests.unit.elf.code_builder import FIRST, code_file
from tests.unit.elf.frame_mutants import check, decode_in_memory
from tests.unit.elf.hostile_frames import cost_of
from tests.unit.elf.readelf_frames import GAP, Words, words

SEED = 20250117
needs_assembler = pytest.mark.skipif(
    shutil.which("as") is None or shutil.which("objcopy") is None, reason="no binutils"
)

# An instruction a line, and what holds before it: CFA, and where the caller's rbp is if not in rbp. A line without that
# is as the one before; "-" is no rule.
ALIGNED = """
    sub $0x60,%rsp          # rsp+8
    mov %rbx,(%rsp)         # rsp+104
    mov %rbp,8(%rsp)
    mov %rsp,%rbx           # rsp+104 c-96
    sub $0x7080,%rsp
    and $-4096,%rsp         # rsp+28904 c-96
    vmovups (%rdi),%ymm3    # rbx+104 c-96
    mov $1,%rbp
    lea 0x80(%rsp),%rsi
    add $0x60,%rsi
    cmp $0,%rdi
    je 1f
    imul %rbp,%rax
    vfmadd231pd %ymm3,%ymm1,%ymm2
 1: mov %rbx,%rsp
    mov (%rsp),%rbx         # rsp+104 c-96
    mov 8(%rsp),%rbp
    add $0x60,%rsp          # rsp+104
    ret                     # rsp+8
"""
FRAME_POINTER = """
    endbr64                 # rsp+8
    push %rbp
    mov %rsp,%rbp           # rsp+16 c-16
    push %r12               # rsp+16 c-16
    and $-64,%rsp           # rsp+24 c-16
    sub %rax,%rsp           # rbp+16 c-16
    call *%rax
    lea -8(%rbp),%rsp
    pop %r12                # rsp+24 c-16
    pop %rbp                # rsp+16 c-16
    ret                     # rsp+8
"""
LEAVES = """
    push %rbp               # rsp+8
    mov %rsp,%rbp           # rsp+16 c-16
    and $-32,%rsp
    movaps %xmm0,(%rsp)     # rbp+16 c-16
    leave
    ret                     # rsp+8
"""
KEPT = """
    push %rbp               # rsp+8
    mov %rsp,%rbp           # rsp+16 c-16
    sub %rax,%rsp
    and $-4096,%rsp         # rbp+16 c-16
    mov %rbp,0x78(%rsp)
    lea (%rdi,%rsi),%rbp
    vmovups (%rbp),%ymm3    # exp c-16
    mov 0x78(%rsp),%rsp
    pop %rbp                # rsp+16 c-16
    ret                     # rsp+8
"""
KEPT_BUT_NEVER_USED = """
    push %rbp               # -
    mov %rsp,%rbp
    sub %rax,%rsp
    mov %rbp,0x78(%rsp)
    xor %ebp,%ebp
    nop
    hlt
"""
TWO_RETURNS = """
    push %r15               # rsp+8
    pushq $5                # rsp+16
    test %rdi,%rdi          # rsp+24
    jne 2f
    add $16,%rsp
    ret                     # rsp+8
    nopw 0(%rax,%rax,1)     # rsp+24
 2: dec %rdi
    jne 2b
    lea 8(%rsp),%rsp
    pop %r15                # rsp+16
    jmp *%rax               # rsp+8
"""
RBP_IS_LOST = """
    mov $7,%ebp             # rsp+8
    nop                     # rsp+8 lost
    ret
"""
HIGH_BYTES = """
    mov %al,%ch             # rsp+8
    sete %ah
    mov %al,%bpl
    nop                     # rsp+8 lost
    ret
"""
# Of what cannot be told the function keeps no rule at all.
TWO_STACKS = """
    test %rdi,%rdi          # -
    je 1f
    push %rax
 1: nop
    ret
"""
WRONG_RETURN = """
    push %rax               # -
    ret
"""
BASE_IS_LOST = """
    mov %rsp,%rbx           # -
    and $-64,%rsp
    xor %ebx,%ebx
    mov %rbx,%rsp
    ret
"""
ANOTHER_STACK = """
    mov (%rdi),%rsp         # -
    ret
"""
INTO_AN_INSTRUCTION = """
    push %rax               # -
    jmp .+3
    mov $1,%eax
    pop %rax
    ret
"""
UNKNOWN_INSTRUCTION = """
    push %rax               # -
    .byte 0x06
    pop %rax
    ret
"""
FUNCTIONS = {
    name.lower().replace("_", " "): text
    for name, text in list(globals().items())
    if name.isupper() and isinstance(text, str) and "#" in text
}


def assembled(text: str, folder: Path) -> bytes:
    (folder / "a.s").write_text(text)
    subprocess.run(["as", "-o", str(folder / "a.o"), str(folder / "a.s")], check=True)
    command = ["objcopy", "-O", "binary", "-j", ".text", str(folder / "a.o"), str(folder / "a.bin")]
    subprocess.run(command, check=True)
    return (folder / "a.bin").read_bytes()


def places(text: str, folder: Path) -> list[int]:
    """Where each line's instruction begins."""
    lines = [line for line in text.splitlines() if line.strip()]
    marks = "".join(f".L_{index}:\n{line}\n" for index, line in enumerate(lines))
    table = "".join(f".quad .L_{index} - .L_0\n" for index in range(len(lines)))
    code = assembled(f"{marks}.balign 8, 0xcc\n{table}", folder)
    return list(np.frombuffer(code[-8 * len(lines) :], "<i8"))


def said(text: str) -> list[Words]:
    """What the comments say of each line."""
    found: list[Words] = []
    for line in text.splitlines():
        if line.strip():
            comment = line.partition("#")[2].split()
            if comment:
                found.append(GAP if comment[0] == "-" else (comment[0], (comment[1:] or [""])[0], "c-8"))
            else:
                found.append(found[-1])
    return found


def rules_at(frames: CallFrames, addresses: list[int]) -> list[Words | None]:
    of_rule = words(frames)
    index = np.searchsorted(frames.address, np.array(addresses, np.uint64), side="right") - 1
    return [of_rule[number] for number in frames.rule[index].tolist()]


@needs_assembler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_each_instruction(name: str, tmp_path: Path) -> None:
    text = FUNCTIONS[name]
    code = assembled(text, tmp_path).ljust(1024, b"\xcc")
    frames = decode_in_memory(code_file([code]))
    assert frames is not None
    check(frames)
    found = rules_at(frames, [FIRST + place for place in places(text, tmp_path)])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = said(text)
    assert list(zip(lines, found)) == list(zip(lines, wanted))
    is_followed = set(wanted) != {GAP}
    assert frames.reasons == ({} if is_followed else {"not followed": 1})
    assert (FIRST in frames.function_starts.tolist()) == is_followed


@needs_assembler
def test_an_fde_that_says_nothing_is_not_believed(tmp_path: Path) -> None:
    pushes = assembled(FRAME_POINTER, tmp_path).ljust(128, b"\x90")
    cannot_tell = assembled(TWO_STACKS, tmp_path).ljust(128, b"\x90")
    frames = decode_in_memory(code_file([], [pushes, cannot_tell]))
    assert frames is not None and frames.reasons == {}
    check(frames)
    at = places(FRAME_POINTER, tmp_path)
    assert rules_at(frames, [FIRST + place for place in at]) == said(FRAME_POINTER)
    assert rules_at(frames, [FIRST + 128, FIRST + 140]) == [("rsp+8", "", "c-8")] * 2


@needs_assembler
def test_small_gaps_are_not_looked_at(tmp_path: Path) -> None:
    code = assembled(LEAVES, tmp_path).ljust(128, b"\xcc")
    frames = decode_in_memory(code_file([code]))
    assert frames is not None and frames.function_count == 2


@pytest.mark.second_tier
@needs_assembler
def test_damaged_code(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    code = [assembled(text, tmp_path).ljust(128, b"\xcc") for text in FUNCTIONS.values()]
    sound, worst_s, followed = code_file(code, code), 0.0, 0
    for number in range(1500):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 2, 5, 20))):
            if number % 2:
                damage(rng, data)
            else:
                data[4096 + rng.randrange(32 * 128)] = rng.randrange(256)
        start_s = time.process_time()
        frames = decode_in_memory(bytes(data))
        worst_s = max(worst_s, time.process_time() - start_s)
        if frames is not None:
            check(frames)
            followed += len(frames.function_starts) > len(code)
    assert worst_s < 1 and followed > 500


def test_random_bytes_as_code() -> None:
    rng = random.Random(SEED)
    for _ in range(30):
        frames = decode_in_memory(code_file([rng.randbytes(rng.randrange(16, 300)) for _ in range(100)]))
        assert frames is not None
        check(frames)


LARGE = 256 << 10
COSTLY = {
    "pushes": b"\x50\x58" * (LARGE // 2 - 1) + b"\xc3\xc3",
    "nothing": b"\x90" * (LARGE - 1) + b"\xc3",
    "jumps to the next": b"\xeb\x00" * (LARGE // 2 - 1) + b"\xc3\xc3",
    "conditions": b"\x74\x7e" * (LARGE // 2 - 1) + b"\xc3\xc3",
    "back and forth": (b"\x50\x58\x74\x80" + b"\x74\x7c\x90\x90") * (LARGE // 8),
    "writes of rbp": b"\x89\xc5" * (LARGE // 2 - 1) + b"\xc3\xc3",
    "prefixes": b"\x66" * 14 + b"\x90" + (b"\x66" * 13 + b"\x90") * (LARGE // 14 - 2) + b"\xc3",
}


@pytest.mark.second_tier
@pytest.mark.parametrize("name", COSTLY)
def test_costly_code_is_left(name: str, tmp_path: Path) -> None:
    """48 MiB of it; Debian's OpenBLAS has 11."""
    (tmp_path / "hostile").write_bytes(code_file([COSTLY[name]] * 192))
    cost = cost_of(tmp_path / "hostile")
    print(f"{name}: {cost.seconds:.2f} s, {cost.peak_mib:.0f} MiB")
    assert cost.seconds < 2 and cost.peak_mib < 256


def test_many_small_functions_are_left(tmp_path: Path) -> None:
    (tmp_path / "hostile").write_bytes(code_file([b"\x50\x58" * 31 + b"\xc3\xc3"] * 100_000))
    cost = cost_of(tmp_path / "hostile")
    assert cost.seconds < 2 and cost.peak_mib < 256


@needs_assembler
def test_more_than_an_effort_is_not_followed(tmp_path: Path) -> None:
    code = assembled("push %rax\nnop\npop %rax\nret\n.fill 12, 1, 0xcc\n", tmp_path)
    (tmp_path / "library").write_bytes(code_file([code] * 40))
    at = np.array([FIRST + 1], np.uint64)
    found = []
    for effort in (Effort(len(code) * 39, 1000, 1000, 40), Effort(len(code) * 40, 1000, 1000, 39), USUAL):
        with ElfImage.open(str(tmp_path / "library")) as image:
            frames = read_call_frames(image, effort)
        found.append((frames.reasons, int(frames.rules[frames.rule_at(at)]["cfa_offset"][0])))
    assert found == [({"not followed": 40}, 0)] * 2 + [({}, 16)]


# The code, and how much of it is the function.
EXTENTS = {
    "ret": ("nop; ret; nop; ret", 2),
    "a jump over a return": ("test %edi,%edi; je 1f; ret; 1: nop; ret; ud2", 7),
    "a jump to what follows": ("je 1f; ret; 1: ret; ret", 4),
    "a loop": ("1: dec %edi; jne 1b; ret; .byte 6", 5),
    "no end": ("1: nop; nop", 0),
    "what is no code": ("nop; .byte 0x06; ret", 0),
    "nothing": (".byte 0x06", 0),
}


@needs_assembler
@pytest.mark.parametrize(("text", "size"), EXTENTS.values(), ids=EXTENTS)
def test_where_a_function_ends(text: str, size: int, tmp_path: Path) -> None:
    assert functions_in(assembled(text + "\n", tmp_path), 4096)[:1] == ([(4096, 4096 + size)] if size else [])


def test_of_no_code_at_all() -> None:
    assert functions_in(b"", 0) == functions_in(bytes(3), 0) == functions_in(bytes(48), 0) == []
    generator = random.Random(SEED)
    for size in range(200):
        found = functions_in(generator.randbytes(size), 64)
        assert all(64 <= begin < end <= 64 + size for begin, end in found)


@needs_assembler
def test_without_symbols_each_begins_behind_the_one_before(tmp_path: Path) -> None:
    """With nops of all sizes between them, as assemblers write them."""
    followed = {name: text for name, text in FUNCTIONS.items() if set(said(text)) != {GAP}}
    code, begins = b"", {}
    for name, text in followed.items():
        begins[name] = len(code)
        code = assembled(f".fill {len(code)}, 1, 0xc3\n{text}\n.balign 16\n", tmp_path)[len(code) :].join((code, b""))
    content = code_file([code.ljust(1024, b"\xcc")])
    stripped = content.replace(b"\1\0\0\0\x12\0\1\0", b"\1\0\0\0\x11\0\1\0")  # an object
    assert stripped != content
    frames = decode_in_memory(stripped)
    assert frames is not None
    check(frames)
    for name, text in followed.items():
        found = rules_at(frames, [FIRST + begins[name] + place for place in places(text, tmp_path)])
        assert found == said(text), name
    assert frames.reasons == {}


def test_what_jumps_elsewhere_may_be_a_part_of_another() -> None:
    inside, outside, back = b"\x75\x01\x90\xc3", b"\x75\x7f\x90\xc3", b"\x75\xf0\x90\xc3"  # jne
    code = b"".join(part.ljust(16, b"\xcc") for part in (inside, back, inside, outside))
    found = [(begin - 4096, end - 4096) for begin, end in functions_in(code, 4096)]
    assert found == [(0, 4), (32, 36)]
