"""The recording's numbers are its own; capture translates those of ebpf/abi.h by name."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.capture.numbers import NATIVE_FLAGS, STATUS, TRANSLATED, status_texts
from bpfprof.model.samples import PARKED_BIT, RANGE_BIT, ThreadFlag, WakerKind
from bpfprof.model.statuses import LastState, NativeFlag, Status

MADE_BY_USER_SPACE = {Status.STACK_LOST, Status.SHORT_WAIT}


def names(enum: type[IntEnum], prefix: str) -> set[str]:
    return {member.name.removeprefix(prefix) for member in enum}


@pytest.mark.parametrize(
    ("enum", "prefix", "numbers", "table"),
    [
        ("bp_thread_state", "BP_THREAD_", LastState, TRANSLATED["state"]),
        ("bp_waker_kind", "BP_WAKER_", WakerKind, TRANSLATED["waker_kind"]),
        ("bp_gil_flags", "BP_", ThreadFlag, TRANSLATED["flags"]),
        ("bp_native_flags", "BP_NATIVE_", NativeFlag, NATIVE_FLAGS),
    ],
)
def test_every_number_has_one_of_the_same_name(enum: str, prefix: str, numbers: Any, table: Any) -> None:
    assert names(abi.ENUMS[enum], prefix) == set(numbers.__members__)
    for member in abi.ENUMS[enum]:
        assert table[member] == numbers[member.name.removeprefix(prefix)]


def test_flags_are_translated_together() -> None:
    holds, unsampled = (abi.ENUMS["bp_gil_flags"][f"BP_{name}"] for name in ("HOLDS_GIL", "UNSAMPLED"))
    assert TRANSLATED["flags"][np.array([holds | unsampled])] == ThreadFlag.HOLDS_GIL | ThreadFlag.UNSAMPLED


def test_every_status_of_a_stack_has_one_of_the_same_name() -> None:
    of_stacks = [status for status in abi.Status if status < abi.Status["BP_LOST_FIRST"]]
    assert {status.name for status in of_stacks} == {f"BP_{it.name}" for it in set(Status) - MADE_BY_USER_SPACE}
    for status in abi.Status:
        name = status.name.removeprefix("BP_")
        assert STATUS[status] == (Status[name] if status in of_stacks else Status.STACK_LOST), name


def test_every_status_has_its_sentence() -> None:
    texts = status_texts()
    assert list(texts) == [str(int(status)) for status in Status] and all(texts.values())
    assert texts[str(int(Status.NATIVE_FAULT))] == "native stack unreadable"


def test_bits_of_arguments_are_recorded_as_they_come() -> None:
    """Nothing translates them: where the kernel side has other ones, capture has to."""
    assert (abi.CONSTANTS["BP_PARKED_BIT"], abi.CONSTANTS["BP_RANGE_BIT"]) == (PARKED_BIT, RANGE_BIT)
