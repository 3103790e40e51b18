"""Numbers that a recording holds: statuses of stacks, what a thread was doing last, and flags.

They are the file's own: `capture` translates those of `ebpf/abi.h` when it writes, so that either can change without
the other. A number that was used is never given another meaning.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Status(IntEnum):
    """Why a stack is as it is; `texts` of a recording's start has the sentence for each that is in the file."""

    OK = 0
    NO_PYTHON = 1
    PYTHON_NOT_READY = 2
    PYTHON_STATE_FAULT = 3
    PYTHON_FRAME_FAULT = 4
    PYTHON_TOO_DEEP = 5
    STACK_NOT_TAKEN = 6
    NOT_STARTED = 7
    NATIVE_NOT_READY = 8
    NATIVE_NO_MAPPING = 9
    NATIVE_NO_RULE = 10
    NATIVE_UNSUPPORTED = 11
    NATIVE_FAULT = 12
    NATIVE_TOO_DEEP = 13
    NATIVE_NOT_GROWING = 14
    STACK_DISAGREES = 15  # made by the reader
    NOT_SAMPLED = 16  # there were more switches than were asked for
    STACK_LOST = 17  # it was sent, and the buffer was full
    SHORT_WAIT = 18  # made by the reader: a wait that was only added up has none
    OVER_BUDGET = 19


class LastState(IntEnum):
    """What a thread was doing when it was looked at last: `state` of totals."""

    UNKNOWN = 0  # nothing was heard of it yet
    ON_CPU = 1
    RUNNABLE = 2
    BLOCKED = 3
    DEAD = 4


class NativeFlag(IntFlag):
    """`native_flags` of a stack."""

    BY_FRAME_POINTER = 1  # some frame was left by its frame pointer, which code need not keep
    BARE_LEAF = 2  # the leaf has no unwind rule and was left by the word on top of the stack
