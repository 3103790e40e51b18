"""The BPF maps: made from the BP_MAP lines of `ebpf/maps.bpf.h`, read and written as numpy records."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpfprof import abi
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.sources import MAP_LINE, maps_header

_NEEDS_ROOT = "the kernel lets only root, or CAP_BPF with CAP_PERFMON and CAP_SYS_ADMIN, watch other programs"
_SCALAR_BYTES = {"none": 0, "__u32": 4, "__u64": 8}


def _possible_cpu_count() -> int:
    with open("/sys/devices/system/cpu/possible") as file:
        return int(re.split(r"[-,]", file.read().strip())[-1]) + 1


@dataclass(frozen=True, slots=True)
class Tables:
    """Descriptors of all maps by name."""

    fds: dict[str, int]

    @classmethod
    def create(cls) -> Tables:
        """Makes every map. Raises UnsupportedError without the privilege, or when the kernel refuses one."""
        fds: dict[str, int] = {}
        for name, map_type, key, value, entries in MAP_LINE.findall(maps_header()):
            sizes = [
                _SCALAR_BYTES[type_name] if type_name in _SCALAR_BYTES else abi.STRUCTS[type_name].itemsize
                for type_name in (key, value)
            ]
            count = int(entries) if entries.isdigit() else abi.CONSTANTS[entries]
            if map_type == "CPU_ARRAY":
                map_type, count = "ARRAY", count * _possible_cpu_count()
            fds[name] = _create(bpf_syscall.MapType[map_type], sizes[0], sizes[1], count, name)
        return cls(fds)

    def close(self) -> None:
        """Closes the descriptors; the maps go when the programs that use them have gone."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def set_config(self, flags: int) -> None:
        """Writes the one bp_config."""
        record = np.zeros(1, abi.CONFIG_DTYPE)
        record["flags"] = flags
        bpf_syscall.map_update(self.fds["config"], _key(0), record.tobytes())

    def set_tail_programs(self, programs: dict[str, int]) -> None:
        """Fills the tables of tail programs: enum bp_tail BP_TAIL_X of table perf_tails is the program perf_x."""
        for kind in ("perf", "sched"):
            for tail in abi.ENUMS["bp_tail"]:
                program = programs.get(f"{kind}_{tail.name.removeprefix('BP_TAIL_').lower()}")
                if program is not None:
                    bpf_syscall.map_update(self.fds[f"{kind}_tails"], _key(tail), _key(program))

    def set_process(self, pid: int, record: npt.NDArray[np.void]) -> None:
        """Adds or replaces a target process; `record` is one element of abi.PROCESS_DTYPE. OSError E2BIG when full."""
        bpf_syscall.map_update(self.fds["processes"], _key(pid), record.tobytes())

    def add_thread(self, tid: int, record: npt.NDArray[np.void]) -> bool:
        """Adds a thread (one element of abi.THREAD_DTYPE); False when it is there already. OSError E2BIG when full."""
        try:
            bpf_syscall.map_update(self.fds["threads"], _key(tid), record.tobytes(), only_new=True)
        except FileExistsError:
            return False
        return True

    def remove_thread(self, tid: int) -> None:
        """Forgets a thread."""
        bpf_syscall.map_delete(self.fds["threads"], _key(tid))

    def threads(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.void]]:
        """(tids, records of abi.THREAD_DTYPE) of all watched threads now."""
        keys, values = bpf_syscall.map_items(
            self.fds["threads"], np.dtype("<u4"), abi.THREAD_DTYPE, abi.CONSTANTS["BP_MAX_THREADS"]
        )
        return keys.view("<u4"), values

    def counters(self) -> npt.NDArray[np.uint64]:
        """Counts by enum bp_status, summed over CPUs; shape (BP_STATUS_COUNT,)."""
        cpus = _possible_cpu_count()
        totals = np.zeros(int(abi.Status["BP_STATUS_COUNT"]), np.uint64)
        for index in range(len(totals)):
            value = bpf_syscall.map_lookup(self.fds["counters"], _key(index), 8 * cpus)
            totals[index] = np.frombuffer(value or b"", "<u8").sum()
        return totals


def _create(map_type: bpf_syscall.MapType, key_bytes: int, value_bytes: int, entries: int, name: str) -> int:
    try:
        return bpf_syscall.map_create(map_type, key_bytes, value_bytes, entries, name)
    except PermissionError as error:
        raise UnsupportedError(_NEEDS_ROOT, "run it with sudo") from error
    except OSError as error:
        raise UnsupportedError(f"the kernel refuses the BPF map {name} ({error.strerror})") from error


def _key(number: int) -> bytes:
    return number.to_bytes(4, "little")
