"""Native stacks of threads that sleep, taken from user space: of sleeps that began before the kernel side watched.

/proc/PID/task/TID/syscall tells where such a thread is and its stack pointer, but no other register. rbp is known again
from the first frame that saved it; a stack that needs it before is not taken.
"""

from __future__ import annotations

import numpy as np

from bpfprof import abi
from bpfprof.code.addresses import RawStack
from bpfprof.code.maps import NativeCode
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NO_FILE
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.tasks import BlockedSyscall
from bpfprof.unwind.interpret import Registers, Stop, walk_by

_EXACT = 1 << abi.CONSTANTS["BP_EXACT_BIT"]
_STATUS_OF = {
    Stop.END_OF_STACK: "OK",
    Stop.NO_MAPPING: "NATIVE_NO_MAPPING",
    Stop.NO_RULE: "NATIVE_NO_RULE",
    Stop.UNREADABLE: "NATIVE_FAULT",
    Stop.UNSUPPORTED: "NATIVE_UNSUPPORTED",
    Stop.TOO_DEEP: "NATIVE_TOO_DEEP",
    Stop.NOT_GROWING: "NATIVE_NOT_GROWING",
    Stop.NOT_READY: "NATIVE_NOT_READY",
}


def native_stack(
    code: NativeCode, pid: Pid, memory: ProcessMemory, call: BlockedSyscall, time_ns: int
) -> RawStack | None:
    """The stack of a thread blocked in `call`; None when nothing is known of the process's code."""
    code_map = code.map_of.get(pid)
    if code_map is None:
        return None

    def rule_at(pc: int) -> np.void | Stop:
        number, address = code_map.locate(pc)
        if number == NO_FILE:
            return Stop.NO_MAPPING
        row = code.memory.rule_at(number, address)
        if row is None:
            return Stop.NOT_READY
        return row[0] if len(row) else Stop.NO_RULE

    registers = Registers(call.program_counter, call.stack_pointer, None)
    found = walk_by(registers, memory.read_u64, rule_at, abi.CONSTANTS["BP_MAX_NATIVE_FRAMES"])
    words = [found.pcs[0] | _EXACT, *found.pcs[1:]]
    status = int(abi.Status[f"BP_{_STATUS_OF[found.stop]}"])
    return RawStack(words, len(words), status, 0, code_map.generation, time_ns)
