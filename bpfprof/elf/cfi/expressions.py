"""The few DWARF expressions that compilers and linkers write: bytes in, a CFA or the place of a register out.

Expressions are those of DWARF 5, section 2.5. Any other is UNSUPPORTED, or says that the register is LOST.
"""

from __future__ import annotations

from bpfprof.elf.cfi.rules import RBP, RSP, CfaKind, FramePointerKind
from bpfprof.elf.leb128 import read_sleb, read_uleb

# DWARF 5, section 7.7.1
_OP_DEREF, _OP_PLUS, _OP_PLUS_UCONST, _OP_LIT0, _OP_BREG0 = 0x06, 0x22, 0x23, 0x30, 0x70
# breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus: binutils bfd/elf64-x86-64.c, elf_x86_64_eh_frame_lazy_plt
# (N = 11) and elf_x86_64_eh_frame_lazy_ibt_plt (N = 10).
_PLT_HEAD, _PLT_TAIL = b"\x77\x08\x80\x00\x3f\x1a", b"\x2a\x33\x24\x22"


def _register_plus(code: bytes) -> tuple[int, int, bytes] | None:
    """`bregN k` of rbp or rsp at the beginning: register, k, what follows."""
    register = code[0] - _OP_BREG0 if code else -1
    if register not in (RBP, RSP):
        return None
    try:
        offset, end = read_sleb(code, 1)
    except (IndexError, ValueError):
        return None
    return (register, offset, code[end:]) if abs(offset) < 1 << 31 else None


def _addend(code: bytes) -> int | None:
    """What is added after the dereference: nothing, `plus_uconst c` or `litC plus`."""
    if code[:1] == bytes([_OP_PLUS_UCONST]):
        try:
            value, end = read_uleb(code, 1)
        except (IndexError, ValueError):
            return None
        return value if end == len(code) and value < 256 else None
    if len(code) == 2 and _OP_LIT0 <= code[0] < _OP_LIT0 + 32 and code[1] == _OP_PLUS:
        return code[0] - _OP_LIT0
    return None if code else 0


def cfa_of(code: bytes) -> tuple[int, int, int]:
    """(CfaKind, offset, extra) of DW_CFA_def_cfa_expression."""
    if code[:6] == _PLT_HEAD and code[7:] == _PLT_TAIL and _OP_LIT0 <= code[6] < _OP_LIT0 + 32:
        return CfaKind.PLT, 8, code[6] - _OP_LIT0
    base = _register_plus(code)
    if base is not None:
        register, offset, rest = base
        if not rest:
            return (CfaKind.RBP if register == RBP else CfaKind.RSP), offset, 0
        addend = _addend(rest[1:]) if rest[0] == _OP_DEREF else None
        if addend is not None:
            return (CfaKind.DEREF_RBP if register == RBP else CfaKind.DEREF_RSP), offset, addend
    return CfaKind.UNSUPPORTED, 0, 0


def place_of(code: bytes) -> tuple[int, int]:
    """(FramePointerKind, offset) of DW_CFA_expression."""
    base = _register_plus(code)
    if base is None or base[2]:
        return FramePointerKind.LOST, 0
    return (FramePointerKind.AT_RBP if base[0] == RBP else FramePointerKind.AT_RSP), base[1]
