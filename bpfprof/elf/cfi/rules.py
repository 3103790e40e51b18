"""What a call frame table says: rows by address, and the rules that lead from a frame to its caller on x86-64.

Register numbers are those of the System V ABI, x86-64 supplement 1.0, figure 3.36: 6 is rbp, 7 is rsp, 16 is the return
address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field, replace
from enum import IntEnum
from typing import TypeVar

import numpy as np

from bpfprof import abi
from bpfprof.abi.dtypes import RULE_DTYPE
from bpfprof.array_types import NDArray
from bpfprof.dataclass import dataclass
from bpfprof.elf.leb128 import Ints

RBP, RSP, RETURN_ADDRESS = 6, 7, 16


_CFA, _FP = abi.ENUMS["bp_cfa_kind"], abi.ENUMS["bp_frame_pointer_kind"]


class CfaKind(IntEnum):
    """Where the canonical frame address is, which is what rsp will be in the caller: see `bp_cfa_kind` of abi.h."""

    NO_RULE = _CFA["BP_CFA_NO_RULE"]
    UNSUPPORTED = _CFA["BP_CFA_UNSUPPORTED"]
    END_OF_STACK = _CFA["BP_CFA_END_OF_STACK"]
    RSP = _CFA["BP_CFA_RSP"]
    RBP = _CFA["BP_CFA_RBP"]
    REGISTER = _CFA["BP_CFA_REGISTER"]
    DEREF_RBP = _CFA["BP_CFA_DEREF_RBP"]
    DEREF_RSP = _CFA["BP_CFA_DEREF_RSP"]
    PLT = _CFA["BP_CFA_PLT"]
    SIGNAL_FRAME = _CFA["BP_CFA_SIGNAL_FRAME"]


class FramePointerKind(IntEnum):
    """Where the caller's rbp is: see `bp_frame_pointer_kind` of abi.h."""

    SAME = _FP["BP_FP_SAME"]
    AT_CFA = _FP["BP_FP_AT_CFA"]
    AT_RBP = _FP["BP_FP_AT_RBP"]
    AT_RSP = _FP["BP_FP_AT_RSP"]
    LOST = _FP["BP_FP_LOST"]


FLAG_IN_REGISTER, FLAG_SIGNAL = abi.CONSTANTS["BP_RULE_IN_REGISTER"], abi.CONSTANTS["BP_RULE_SIGNAL"]
# The first two rules of every file.
NO_RULE_ID, UNSUPPORTED_ID = abi.CONSTANTS["BP_RULE_NO_RULE"], abi.CONSTANTS["BP_RULE_UNSUPPORTED"]
RULE = RULE_DTYPE
RULE_LIMIT = 1 << 16  # distinct rules of a file; all files of a machine have some 4,000

Rules = NDArray[np.void]
RuleFields = tuple[int, int, int, int, int, int, int]  # of RULE


class Reason(IntEnum):
    """Why a function, or a part of it, has no usable rule."""

    NONE = 0
    UNKNOWN_INSTRUCTION = 1
    TRUNCATED = 2
    SET_LOC = 3
    RESTORE_WITHOUT_REMEMBER = 4
    STACK_POINTER_ELSEWHERE = 5
    NO_CFA = 6
    CFA_EXPRESSION = 7
    RETURN_ADDRESS_ELSEWHERE = 8
    OFFSET_TOO_LARGE = 9
    TOO_MANY_RULES = 10
    BAD_CIE = 11
    AUGMENTATION = 12
    POINTER_ENCODING = 13
    BAD_RANGE = 14
    OVERLAP = 15
    TOO_LONG = 16
    TOO_MANY_FUNCTIONS = 17
    TOO_MANY_ROWS = 18
    TOO_COSTLY = 19
    NOT_FOLLOWED = 20  # code without an FDE

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


UNSUPPORTED_FIELDS: RuleFields = (int(CfaKind.UNSUPPORTED), 0, 0, 0, 0, 0, 0)
Addresses = NDArray[np.uint64]
Numbers = TypeVar("Numbers", Addresses, NDArray[np.uint32])


def rules_array(fields: Iterable[RuleFields] = ((0,) * 7, UNSUPPORTED_FIELDS)) -> Rules:
    return np.array(list(fields), RULE)


def _none() -> Addresses:
    return np.zeros(0, np.uint64)


@dataclass(frozen=True)
class CallFrames:
    """Rows sorted by address; each holds up to the next one, the last one for ever.

    `rule` are indices of `rules` (dtype RULE); 0 is NO_RULE and begins every gap between functions, 1 is UNSUPPORTED.
    `function_starts` and `function_ends` are what the FDEs cover, sorted by start. `reasons` says how many of the
    `function_count` have no rules, or no rule somewhere, and why; `unsupported_count` is their sum.
    """

    address: Addresses = field(default_factory=_none)
    rule: NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, np.uint16))
    rules: Rules = field(default_factory=rules_array)
    function_starts: Addresses = field(default_factory=_none)
    function_ends: Addresses = field(default_factory=_none)
    function_count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def unsupported_count(self) -> int:
        return sum(self.reasons.values())

    def rule_at(self, addresses: Addresses) -> Ints:
        """The rule that holds at each address."""
        if not len(self.rule):
            return np.full(len(addresses), NO_RULE_ID)
        index = np.searchsorted(self.address, addresses, side="right") - 1
        return np.where(index >= 0, self.rule[index], NO_RULE_ID).astype(np.int64)

    def function_at(self, addresses: Addresses) -> Ints:
        """The index of the function that covers each address, -1 where none does."""
        if not len(self.function_starts):
            return np.full(len(addresses), -1)
        index = np.searchsorted(self.function_starts, addresses, side="right") - 1
        return np.where((index >= 0) & (addresses < self.function_ends[index]), index, -1)

    def with_lost(self, reason: Reason, count: int = 1) -> CallFrames:
        """With so many more functions that have no rules."""
        reasons = Counter(self.reasons) + Counter({reason.text: count})
        return replace(self, function_count=self.function_count + count, reasons=dict(reasons))

    def over(self, other: CallFrames) -> CallFrames:
        """These rows, and those of `other` where these have no rule."""
        if not other.function_count and not len(other.rule):
            return self
        if not self.function_count and not len(self.rule):
            return other
        ids = {rule: index for index, rule in enumerate(self.rules.tolist())}
        moved = np.array([ids.setdefault(rule, len(ids)) for rule in other.rules.tolist()])
        if len(ids) > RULE_LIMIT:
            kept, left_out = (self, other) if self.function_count >= other.function_count else (other, self)
            return kept.with_lost(Reason.TOO_MANY_RULES, left_out.function_count)
        address = np.concatenate((self.address, other.address))
        order = np.argsort(address, kind="stable")
        is_upper = order < len(self.address)
        upper = np.append(NO_RULE_ID, self.rule)[np.cumsum(is_upper)]
        lower = moved[np.append(NO_RULE_ID, other.rule)[np.cumsum(~is_upper)]]
        rule = np.where(upper == NO_RULE_ID, lower, upper).astype(np.uint16)
        address, rule = rows_in_order(address[order], rule)
        starts = np.concatenate((self.function_starts, other.function_starts))
        order = np.argsort(starts, kind="stable")
        return CallFrames(
            address,
            rule,
            rules_array(ids),
            starts[order],
            np.concatenate((self.function_ends, other.function_ends))[order],
            self.function_count + other.function_count,
            dict(Counter(self.reasons) + Counter(other.reasons)),
        )


def rows_in_order(address: Numbers, rule: NDArray[np.uint16]) -> tuple[Numbers, NDArray[np.uint16]]:
    """Rows by address: the last of those at the same one, without those that say the same as the one before."""
    if (address[1:] <= address[:-1]).any():
        order = np.argsort(address, kind="stable")
        address, rule = address[order], rule[order]
        keep = np.append(address[1:] != address[:-1], True)
        address, rule = address[keep], rule[keep]
    keep = np.ones(len(rule), np.bool_)
    keep[1:] = rule[1:] != rule[:-1]
    return address[keep], rule[keep]
