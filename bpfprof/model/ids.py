"""Identifiers and address spaces, told apart by type.

`Pid` is what user space calls a process id (the kernel's tgid); `Tid` is what it calls a thread id (the kernel's pid).
A `RuntimeAddress` is valid in one running process, an `ElfAddress` is a virtual address as written in an ELF file,
a `FileOffset` is a position in a file. Mixing them is the classic profiler bug, so they are different types.
"""

from __future__ import annotations

from typing import NewType

Pid = NewType("Pid", int)
Tid = NewType("Tid", int)
RuntimeAddress = NewType("RuntimeAddress", int)
ElfAddress = NewType("ElfAddress", int)
FileOffset = NewType("FileOffset", int)
