"""The BPF maps: made from the BP_MAP lines of `ebpf/maps.bpf.h`, written and read as the structs of `ebpf/abi.h`."""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import field

from bpfprof import abi
from bpfprof.dataclass import dataclass
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.attach import cpus
from bpfprof.kernel.kernel_facts import kernel_version_code
from bpfprof.kernel.map_sizes import map_sizes
from bpfprof.kernel.refusals import refusal
from bpfprof.kernel.sources import MAP_LINE, maps_header
from bpfprof.proc.memory_limits import memory_there_is

# Elements of hash maps are made as they are needed where programs of perf events may use such maps: Linux 6.1 and later
# ("bpf: Relax the requirement to use preallocated hash maps in tracing progs."). Else all are made at once: 80 MiB for
# BP_MAX_THREADS.
_HASH_FLAGS = bpf_syscall.BPF_F_NO_PREALLOC if kernel_version_code() >= 6 << 16 | 1 << 8 else 0
# Types of maps.bpf.h that are not the kernel's own or have flags.
_KINDS = {
    "HASH": ("HASH", _HASH_FLAGS),
    "CPU_ARRAY": ("ARRAY", 0),
    "SHARED_ARRAY": ("ARRAY", bpf_syscall.BPF_F_MMAPABLE),
    "CHUNK_ARRAY": ("ARRAY_OF_MAPS", 0),
}
_SCALAR_BYTES = {"none": 0, "__u32": 4, "__u64": 8}


@dataclass(frozen=True)
class Tables:
    """Descriptors of all maps by name, and how many elements each has; rings: bytes."""

    fds: dict[str, int]
    entries: dict[str, int] = field(default_factory=dict)
    key_factor: int = field(
        default_factory=lambda: int.from_bytes(os.urandom(8), "little") | 1
    )  # of bp_config, in this recording

    @classmethod
    def create(cls, with_calls: bool = False) -> Tables:
        """Makes every map. Raises UnsupportedError without the privilege, or when the kernel refuses one.

        with_calls: also those for calls of libraries.
        """
        fds: dict[str, int] = {}
        entries_of: dict[str, int] = {}
        all_sizes = {**abi.CONSTANTS, **map_sizes(memory_there_is())}
        for name, map_type, key, value, entries in MAP_LINE.findall(maps_header(with_calls)):
            sizes = [
                _SCALAR_BYTES[type_name] if type_name in _SCALAR_BYTES else abi.size(type_name)
                for type_name in (key, value)
            ]
            count = int(entries) if entries.isdigit() else all_sizes[entries]
            if map_type == "CPU_ARRAY":
                count *= cpus("possible")[-1] + 1
            inner_fd = 0
            if map_type == "CHUNK_ARRAY":
                inner_fd = fds["chunk"] = _new_chunk()  # the kernel needs one to know what the others will be like
                sizes = [4, 4]
            entries_of[name] = count
            kind, flags = _KINDS.get(map_type, (map_type, 0))
            fds[name] = _create(kind, sizes[0], sizes[1], count, name, flags, inner_fd)
        return cls(fds, entries_of)

    def close(self) -> None:
        """Closes the descriptors; the maps go when the programs that use them have gone."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def set_config(self, flags: int, min_block_ns: int = 0, stack_interval_ns: int = 0) -> None:
        """Writes the one bp_config."""
        times = {"min_block_ns": min_block_ns, "stack_interval_ns": stack_interval_ns}
        record = abi.pack("bp_config", flags=flags, key_factor=self.key_factor, **times)
        bpf_syscall.map_update(self.fds["config"], _key(0), record)

    def set_process(self, pid: int, record: bytes, is_new: bool = True) -> None:
        """Adds a target process, or replaces its record (a packed bp_process). OSError E2BIG when full.

        Does nothing for one that is not new and gone: its pid may be another's soon.
        """
        with contextlib.suppress(FileNotFoundError):
            bpf_syscall.map_update(self.fds["processes"], _key(pid), record, only_old=not is_new)

    def add_thread(self, tid: int, record: bytes) -> bool:
        """Adds a thread (a packed bp_thread); False when it is there already. OSError E2BIG when full."""
        try:
            bpf_syscall.map_update(self.fds["threads"], _key(tid), record, only_new=True)
        except FileExistsError:
            return False
        return True

    def add_chunk(self, number: int, fd: int) -> None:
        """Lets programs reach a chunk. OSError E2BIG when there are BP_MAX_CHUNKS."""
        bpf_syscall.map_update(self.fds["chunks"], _key(number), _key(fd))

    def new_chunk(self) -> int:
        """Descriptor of a map of one bp_chunk, to be mapped into memory and given to `add_chunk`."""
        return _new_chunk()

    def counters(self) -> list[int]:
        """Counts by enum bp_status, summed over CPUs."""
        copies = cpus("possible")[-1] + 1
        totals = []
        for index in range(abi.CONSTANTS["BP_STATUS_COUNT"]):
            value = bpf_syscall.map_lookup(self.fds["counters"], _key(index), 8 * copies) or bytes(8 * copies)
            totals.append(sum(struct.unpack(f"<{copies}Q", value)))
        return totals


class OwnTables(Tables):
    """Unwind tables for this process alone, without the kernel side and its privileges."""

    @classmethod
    def create(cls, with_calls: bool = False) -> OwnTables:
        """with_calls: there are none."""
        sizes = {
            "rules": abi.size("bp_rule") * abi.CONSTANTS["BP_MAX_RULES"],
            "files": abi.size("bp_file") * abi.CONSTANTS["BP_MAX_FILES"],
            "chunk": abi.size("bp_chunk"),
        }
        return cls({name: _memory(size) for name, size in sizes.items()})

    def add_chunk(self, number: int, fd: int) -> None:
        """Nobody else reads it."""

    def new_chunk(self) -> int:
        return _memory(abi.size("bp_chunk"))


def _memory(size: int) -> int:
    fd = os.memfd_create("bpfprof-tables", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def _new_chunk() -> int:
    return _create("ARRAY", 4, abi.size("bp_chunk"), 1, "chunk", bpf_syscall.BPF_F_MMAPABLE)


def _create(
    map_type: str, key_bytes: int, value_bytes: int, entries: int, name: str, flags: int = 0, inner_fd: int = 0
) -> int:
    kind = bpf_syscall.MapType[map_type]
    try:
        return bpf_syscall.map_create(kind, key_bytes, value_bytes, entries, name, flags, inner_fd)
    except OSError as error:
        raise refusal(f"the BPF map {name}", error) from error


def _key(number: int) -> bytes:
    return number.to_bytes(4, "little")
