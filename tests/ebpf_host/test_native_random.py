"""Random tables, registers and stacks: the kernel side's walk against the interpreter of `bpfprof.unwind`."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.elf.cfi.rules import FLAG_IN_REGISTER, FLAG_SIGNAL, RULE, CfaKind, FramePointerKind
from bpfprof.model.ids import RuntimeAddress
from bpfprof.unwind.interpret import MappedFile, Registers, Stop
from bpfprof.unwind.rows import FRAME_POINTER_ID, FileRows, RuleTable
from tests.ebpf_host.host import CONFIG, PROCESS, SANITIZED, Host, Segment, mapping_array, pt_regs
from tests.ebpf_host.oracle import MAX_FRAMES, STATUS_OF, exact_frames, expected_walk, reader

TABLES, WALKS = (20, 100) if SANITIZED in os.environ else (100, 200)
SEED = 20240229
STACK, OTHER_STACK = 0x7FFC_1230_0000, 0x7F11_0000_0000


class CountingRules(list[dict[str, int]]):
    """Rules as the interpreter takes them; the counters say how often each kind was used."""

    def __init__(self, table: RuleTable) -> None:
        names = RULE.names or ()
        super().__init__(dict(zip(names, record)) for record in table.records.tolist())
        self.cfa_kinds, self.fp_kinds = Counter[int](), Counter[int]()

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        rule = super().__getitem__(int(index))
        self.cfa_kinds[rule["cfa_kind"]] += 1
        self.fp_kinds[rule["fp_kind"]] += 1
        return rule


@dataclass(frozen=True)
class Program:
    """Mappings as both sides take them."""

    index: int
    count: int
    files: list[MappedFile]
    is_deep: bool
    code: npt.NDArray[np.uint64]  # addresses in the mappings
    edges: list[int]


def some_rule(random: random.Random, is_deep: bool) -> tuple[int, ...]:
    """One that compilers could write, mostly."""
    kind = random.choice([CfaKind.RSP] * 60 if is_deep else [*CfaKind][3:] + [CfaKind.RSP] * 12 + [CfaKind.RBP] * 3)
    fp_kind = random.choice([*FramePointerKind, FramePointerKind.SAME])
    if not is_deep and random.random() < 0.05:
        kind = random.choice([CfaKind.NO_RULE, CfaKind.UNSUPPORTED, CfaKind.END_OF_STACK])
        if kind == CfaKind.NO_RULE:
            return (0,) * 7
    offset = 8 * random.choice([2, 2, 4] if is_deep else [1, 2, 2, 2, 2, 4, 4, 6, 6, 8, 20, 130])
    extra, flags, ra_offset = 0, 0, -8
    fp_offset = random.choice([-16, -24, -16, 0, 8, 16])
    if kind == CfaKind.REGISTER:
        extra = random.choice([0, 1, 2, 3, 4, 5, 6, *range(8, 16)])
    elif kind in (CfaKind.DEREF_RBP, CfaKind.DEREF_RSP):
        offset, extra = random.choice([-8, 0, 8, 40]), random.choice([0, 8, 255])
    elif kind == CfaKind.PLT:
        offset, extra = 8, random.choice([6, 11])
    elif kind == CfaKind.SIGNAL_FRAME:
        flags, ra_offset, fp_offset = FLAG_SIGNAL, 168, random.choice([120, 16])
        offset, extra = random.choice([160, 8]), random.choice([0, 0, 8])
    if random.random() < 0.02:
        flags ^= FLAG_SIGNAL
    if not is_deep and random.random() < 0.03:
        offset = random.choice([-16, 0, 1 << 20, -(1 << 31), (1 << 31) - 1, 4])
    if not is_deep and random.random() < 0.03:
        ra_offset = random.choice([-16, -4096, 8, -(1 << 31)])
    if kind == CfaKind.RSP and not flags and random.random() < 0.03:
        flags, ra_offset = FLAG_IN_REGISTER, random.choice([0, 1, 2, 3, 4, 5, *range(8, 16)])
    return kind, fp_kind, flags, extra, offset, fp_offset, ra_offset


def some_file(random: random.Random, rule_count: int) -> FileRows:
    """Rows on up to six pages, some of them without any."""
    first_page = random.randrange(1, 64)
    page_count = random.randrange(2, 7)
    size = page_count << 12
    addresses = sorted({random.choice([0, 0, 0, 5000]), *random.sample(range(size), random.choice([1, 5, 40, 400]))})
    used_pages = addresses[-1] // 4096 + 1  # as in a file: the last page has a row
    edges = np.searchsorted(addresses, [page << 12 for page in range(used_pages + 1)])
    rows = [0] + [(address & 4095) << 20 | random.randrange(3, rule_count) for address in addresses]
    return FileRows(first_page, (1 + edges).astype(np.uint32), np.array(rows, np.uint32))


def frame_pointer_file(start: int, end: int) -> FileRows:
    """What the interpreter takes for code without a table: one rule everywhere."""
    pages = (end >> 12) - (start >> 12) + 1
    return FileRows(start >> 12, np.array([1] + [2] * pages, np.uint32), np.array([0, FRAME_POINTER_ID], np.uint32))


class Maker:
    """Writes random programs into the tables of both sides."""

    def __init__(self, host: Host, random: random.Random) -> None:
        self.memory, self.random = host.unwind_memory(), random
        self.rules = RuleTable()
        self.file_count = 0

    def program(self) -> Program:
        random, is_deep = self.random, self.random.random() < 0.2
        local = np.array(
            [(0,) * 7, (1, *(0,) * 6), (CfaKind.RBP, 1, 0, 0, 16, -16, -8)]
            + [some_rule(random, is_deep) for _ in range(random.choice([2, 30]))],
            RULE,
        )
        at, mappings, files = 0x5555_0000_0000, [], []
        for _ in range(random.choice([1, 2, 3, 5])):
            self.file_count += 1
            has_table = is_deep or random.random() < 0.9
            table = some_file(random, len(local))
            at += 4096 * random.choice([0, 0, 1, 300])
            end = at + 4096 * random.choice([*[len(table.pages) - 1] * 6, 1, 8])
            bias = at - 4096 * (table.first_page + random.choice([*[0] * 8, -1])) if has_table else 0
            if has_table:
                self.memory.set_file(self.file_count, table, local)
                adopted = self.rules.adopt(table, local)
            else:
                self.memory.set_frame_pointers(self.file_count)
                adopted = frame_pointer_file(at, end)
            mappings.append((at, end, bias, self.file_count))
            files.append(MappedFile(RuntimeAddress(at), RuntimeAddress(end), bias, adopted))
            at = end
        code = [random.randrange(*random.choice(mappings)[:2]) for _ in range(1000)]
        edges = [edge for start, end, *_ in mappings for edge in (start - 1, start, start + 1, end - 1, end, end + 1)]
        index = self.memory.add_mappings(mapping_array(mappings))
        return Program(index, len(mappings), files, is_deep, np.array(code, np.uint64), edges)


def some_stack(program: Program, numbers: np.random.Generator) -> Segment:
    """Return addresses in every other word, addresses in the stack between them, and rubbish.

    Frames are a multiple of 16 bytes, mostly: System V ABI, x86-64 supplement 1.0, section 3.2.2.
    """
    count = int(numbers.choice([100, 400, 1000, 2000] if program.is_deep else [2, 10, 40, 120, 140, 300]))
    low = int(numbers.choice([STACK, OTHER_STACK]))
    words = numbers.choice(program.code, count)
    above = low + 8 * (np.arange(count, dtype=np.uint64) + numbers.integers(1, 30, count, dtype=np.uint64))
    stack_odds = np.where(np.arange(count) % 2, 0.0005 if program.is_deep else 0.03, 0.85)
    words = np.where(numbers.random(count) < stack_odds, above, words)
    rubbish = numbers.choice(
        np.array([0, 0, 1, 1 << 47, (1 << 64) - 1, 0xDEAD << 40, *program.edges], np.uint64), count
    )
    words = np.where(numbers.random(count) < (0.001 if program.is_deep else 0.01), rubbish, words)
    return low, words.astype("<u8").tobytes()


def some_memory(stack: Segment, random: random.Random) -> list[Segment]:
    (low, data), chance = stack, random.random()
    middle = 8 * random.randrange(len(data) // 8)
    if chance < 0.1:  # the first bytes are not readable
        return [(low + middle - 3, data[middle - 3 :])] if middle else []
    if chance < 0.2:  # a hole
        return [(low, data[:middle]), (low + middle + 8, data[middle + 8 :])]
    if chance < 0.3:  # more memory before it, so that blocks begin there and do not fit at its end
        return [(low - 4096, bytes(4096) + data)]
    return [stack]


def some_registers(
    program: Program, stack: Segment, random: random.Random, others: npt.NDArray[np.uint64]
) -> Registers:
    """Near the stack's low end, mostly."""
    low, size = stack[0], len(stack[1])
    at = low + 16 * random.randrange(max(1, size // (320 if program.is_deep else 32)))
    bp = at + 16 * random.randrange(0, 6)
    if random.random() < 0.1:
        at += random.choice([4, 8, 8 * random.randrange(size // 8)])  # a word can lie anywhere
        bp = random.choice([random.randrange(low, low + size), random.getrandbits(64), 1 << 63, (1 << 63) - 8])
    leaf = int(random.choice(program.code if random.random() < 0.98 else program.edges))
    return Registers(leaf, at, bp, {**dict(enumerate(others.tolist())), 6: bp, 7: at})


@pytest.mark.second_tier
def test_random_walks(host: Host) -> None:
    chance = random.Random(SEED)
    numbers = np.random.default_rng(SEED)
    maker = Maker(host, chance)
    programs = [maker.program() for _ in range(TABLES)]
    rules = CountingRules(maker.rules)
    host.set_config(CONFIG["BP_CONFIG_NATIVE"])
    stops, lengths, frames = Counter[Stop](), Counter[int](), 0
    for program in programs:
        host.set_process(PROCESS["BP_PROCESS_UNWIND"], program.index, program.count)
        others = numbers.integers(0, 1 << 64, (WALKS, 16), dtype=np.uint64)
        for number in range(WALKS):
            if number % 5 == 0:
                stack = some_stack(program, numbers)
                segments = some_memory(stack, chance)
                others[number : number + 5, ::2] = stack[0] + 8 * numbers.integers(0, 80, (5, 8), dtype=np.uint64)
                host.set_user_memory(segments)
            registers = some_registers(program, stack, chance, others[number])
            expected = expected_walk(registers, reader(segments), program.files, rules)
            host.set_registers(pt_regs(registers))
            found = host.stack()
            where = f"program {program.index}, walk {number}: {expected.stop.name}"
            assert [hex(pc & (1 << 63) - 1) for pc in expected.pcs] == [hex(pc) for pc in found.pcs], where
            assert found.native_status == STATUS_OF[expected.stop], where
            if number % 5 == 0 and expected.pcs[-1] >> 63 == 0:
                assert found.exact == exact_frames(expected.pcs, program.files, rules), where
            stops[expected.stop] += 1
            frames += len(expected.pcs)
            lengths[len(expected.pcs)] += 1
    print(f"{TABLES * WALKS} walks, {frames} frames: {stops}, {rules.cfa_kinds}, {rules.fp_kinds}")
    few = 20 if SANITIZED not in os.environ else 0  # which takes fewer walks
    assert all(stops[stop] >= few for stop in Stop if stop != Stop.NOT_READY)  # every table is there
    assert all(rules.cfa_kinds[kind] >= 5 * few for kind in CfaKind if kind != CfaKind.NO_RULE)
    assert all(rules.fp_kinds[kind] >= 5 * few for kind in FramePointerKind)
    assert lengths[MAX_FRAMES] >= few
