"""The code objects of a process that are known, and what tells one from another at the same address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bpfprof.cpython.code_objects import CodeObject, Identity, Unresolved

_MASK64 = (1 << 64) - 1
CodeReader = Callable[[int], CodeObject | Unresolved]


def _mix(hash_value: int, value: int) -> int:
    """mix() of ebpf/python_frames.bpf.h."""
    hash_value = ((hash_value ^ value) * 0xFF51AFD7ED558CCD) & _MASK64
    return hash_value ^ (hash_value >> 32)


def identity_hash(identity: Identity) -> int:
    """The same as the kernel side makes of it: code_identity() in ebpf/python_frames.bpf.h."""
    value = 1
    for word in identity:
        value = _mix(value, word)
    return value | 1


@dataclass(slots=True)
class ProcessCodes:
    """The known code objects of one process: address -> (identity, index in the recording, address of the code)."""

    process: int
    reader: CodeReader | None
    known: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    numbered: dict[bytes, bytes] = field(default_factory=dict)  # Python frames as they came -> as they are recorded

    def forked(self, process: int, reader: CodeReader) -> ProcessCodes:
        """For a child: what the parent had is still at the same addresses, and may be read there when it is gone.

        The parent may have replaced one since: what is read is only used if it is the one the kernel side saw.
        """

        def read(address: int) -> CodeObject | Unresolved:
            found = reader(address)
            return self.reader(address) if isinstance(found, Unresolved) and self.reader else found

        return ProcessCodes(process, read, dict(self.known))
