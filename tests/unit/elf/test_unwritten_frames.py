"""Rules for procedure linkage tables that the linker wrote none for, and for the entry point."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.cfi.implied_rules import implied_rules
from bpfprof.elf.cfi.rules import UNSUPPORTED_ID, CallFrames, CfaKind
from bpfprof.elf.cfi.sections import code_range
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage, ElfSection
from bpfprof.model.ids import ElfAddress, FileOffset
from tests.unit.elf.test_call_frames_oracle import REAL_FILES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
OPTIONS = {"lazy": ("-Wl,-z,lazy", "-fcf-protection=none"), "now": ("-Wl,-z,now",), "ibt": ("-Wl,-z,lazy,-z,ibtplt",)}


@pytest.mark.parametrize("kind", OPTIONS)
def test_what_gnu_ld_says_of_its_own_tables_is_what_we_would_say(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        '#include <stdlib.h>\n#include <stdio.h>\nint main(void) { puts(getenv("A")); return 0; }\n'
    )
    command = ["cc", "-O1", *OPTIONS[kind], "-o", str(tmp_path / "a"), str(tmp_path / "a.c")]
    subprocess.run(command, check=True)
    with ElfImage.open(str(tmp_path / "a")) as image:
        frames = read_call_frames(image)
        implied = implied_rules(image, CallFrames(), code_range(image))
    known = frames.rule_at(implied.address)
    chosen = (implied.rule > UNSUPPORTED_ID) & (known > UNSUPPORTED_ID) & (implied.address != image.entry)
    assert chosen.any()
    for address in implied.address[chosen].tolist():
        for place in np.arange(address, address + 16, dtype=np.uint64):
            own, theirs = (it.rules[it.rule_at(np.array([place]))[0]] for it in (implied, frames))
            if own["cfa_kind"] != CfaKind.NO_RULE:
                assert cfa(own, int(place)) == cfa(theirs, int(place)), hex(place)


def cfa(rule: np.void, address: int) -> int:
    """The canonical frame address above rsp."""
    assert rule["cfa_kind"] in (CfaKind.RSP, CfaKind.PLT)
    is_late = rule["cfa_kind"] == CfaKind.PLT and address & 15 >= rule["cfa_extra"]
    return int(rule["cfa_offset"]) + 8 * bool(is_late)


def test_a_library_of_another_linker_gets_them() -> None:
    found = 0
    for path in REAL_FILES.values():
        with ElfImage.open(str(path)) as image:
            section, frames = image.section(".plt"), read_call_frames(image)
            if section is None:
                continue
            index = np.searchsorted(frames.address, np.uint64(section.address + 20), side="right") - 1
            assert frames.rules[frames.rule[index]]["cfa_kind"] in (CfaKind.RSP, CfaKind.PLT), path
            found += 1
    assert found


def test_the_stack_ends_where_the_dynamic_linker_begins() -> None:
    """glibc writes nothing for it; other entry points have an FDE."""
    with ElfImage.open("/lib64/ld-linux-x86-64.so.2") as image:
        frames = read_call_frames(image)
        index = np.searchsorted(frames.address, np.uint64(image.entry), side="right") - 1
        assert frames.rules[frames.rule[index]]["cfa_kind"] == CfaKind.END_OF_STACK


@pytest.mark.parametrize("address", [1 << 46, (1 << 47) - 32, 16])
def test_a_table_outside_the_code_is_left_out(address: int) -> None:
    """A section header can say anything; a page index that reached so far would not fit into memory."""
    with ElfImage.open("/lib64/ld-linux-x86-64.so.2") as image:
        sound = read_call_frames(image)
        assert image._sections is not None
        image._sections[".plt.sec"] = ElfSection(ElfAddress(address), FileOffset(64), 64)
        frames = read_call_frames(image)
        assert frames.address.tolist() == sound.address.tolist()


BUILTINS = """
.macro function name
.type \\name, @function
\\name:
    jmp *%rax
    .skip 30, 0xcc
.size \\name, . - \\name
.endm
.text
function before
function Builtins_Abort
function Builtins_InterpreterEntryTrampoline
function Builtins_Zero
function behind
"""


def test_builtins_of_v8_keep_a_frame_pointer(tmp_path: Path) -> None:
    """Those side by side that are called so, also where nothing says what they do; and nothing around them."""
    (tmp_path / "builtins.s").write_text(BUILTINS)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-o", "a", "main.c", "builtins.s"], cwd=tmp_path, check=True)
    with ElfImage.open(str(tmp_path / "a")) as image:
        frames = read_call_frames(image)
        names = ["before", "Builtins_Abort", "Builtins_InterpreterEntryTrampoline", "Builtins_Zero", "behind"]
        symbols = [symbol for name in names if (symbol := image.find_symbol(name)) is not None]
    places = np.array([symbol.address + 2 for symbol in symbols], np.uint64)
    kinds = frames.rules[frames.rule_at(places)]["cfa_kind"].tolist()
    assert len(kinds) == 5 and kinds[1:4] == [CfaKind.RBP] * 3
    assert CfaKind.RBP not in (kinds[0], kinds[4])
