"""A thread that waits again and again, with a stack that is the same or another each time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bpfprof.unwind.interpret import Registers
from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, STATUS, Stack
from tests.ebpf_host.native_image import CALL, CALL_BYTES, END, STACK, call_stack
from tests.ebpf_host.python_image import CHUNK, CHUNK_BYTES, Frame, PythonImage, chain, random_codes
from tests.ebpf_host.scheduler import SLEEPING, Scheduler, Task

FRAMES, RETURNS, SLOTS = (CONSTANTS[f"BP_REPEAT{name}"] for name in ("_FRAMES", "_RETURNS", "S"))
GOOD_FOR_NS, RESEND_NS = CONSTANTS["BP_REPEAT_NS"], CONSTANTS["BP_RESEND_NS"]
HEAP, C_STACK = 0x7F55_0000_0000, 0x7FFC_0000_4000
KEPT_REGISTERS = (3, 12, 13, 14, 15)  # DWARF numbers of rbx and r12 to r15: a system call keeps them
OFF_CPU = CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_NATIVE"]
NATIVE = (*(CALL + n for n in range(RETURNS)), END)  # as many return addresses as a stack that repeats can have
REGISTERS = Registers(NATIVE[0], STACK, 0x7FFC_5500_0000, {n: 0x100 * n for n in KEPT_REGISTERS})
WALKED_WAIT_NS = 100
FRAME_STEP, BLOCK_BYTES = 96, 4096  # from frame to frame; ebpf/python_frames.bpf.h


def frames_in_chunk(count: int) -> list[Frame]:
    """Leaf first, and one next to the other."""
    return chain(count, CHUNK + 24, CHUNK + CHUNK_BYTES, FRAME_STEP)


@dataclass(slots=True)
class Sleeper:
    """A thread of Python and native frames that waits in read(), and the memory of its process."""

    scheduler: Scheduler
    task: Task
    index: int
    version: str = "3.11"
    frames: list[Frame] = field(default_factory=lambda: frames_in_chunk(FRAMES))
    native: tuple[int, ...] = NATIVE  # but for the innermost, which is in `registers`
    registers: Registers = REGISTERS
    flags: int = PROCESS["BP_PROCESS_UNWIND"]
    call_bytes: int = CALL_BYTES  # of a native frame
    stack_bytes: int | None = None  # that can be read above the stack pointer; None: all
    state: int = SLEEPING
    status: int = STATUS.BP_OK
    code_seed: int = 5  # what code objects hold, beside their address
    walk_calls: int = 0  # programs that the last stack took, beside the first
    reads: int = 0  # of user memory
    stacks: list[Stack] = field(default_factory=list)  # that were sent

    def wait(self, after_ns: int = 1000) -> int:
        """Waits once with the memory as it is; the key of the stack."""
        host = self.scheduler.host
        image = PythonImage(self.version, codes=random_codes(self.code_seed))
        image.regions |= {HEAP: bytearray(0x2000), C_STACK: bytearray(0x2000)}
        image.link(self.frames)
        pcs = self.registers.ip, *self.native[1:]
        sp, words = call_stack(pcs, self.call_bytes, self.registers.sp)
        words = (words + bytes(0x400))[: self.stack_bytes]
        stack = (sp - 0x100, bytes(0x100) + words)
        image.install(host, self.frames[0].address, [stack], self.flags, index=self.index, count=1)
        self.task.at(self.registers)
        self.scheduler.later(after_ns, self.task)
        host.state.user.reads = 0
        self.scheduler.switch(self.task, self.scheduler.idle, self.state)
        self.walk_calls, self.reads = int(host.state.walk_calls), int(host.state.user.reads)
        self.stacks = self.scheduler.stacks
        self.scheduler.later(WALKED_WAIT_NS)
        self.scheduler.wake(self.task)
        (event,) = self.scheduler.switch(self.scheduler.idle, self.task)
        assert event["status"] == self.status
        return int(event["stack"])

    def change(self, n: int, **fields: int) -> None:
        """Another frame in the place of frame n."""
        self.frames = [*self.frames[:n], replace(self.frames[n], **fields), *self.frames[n + 1 :]]


def check_repeats(sleeper: Sleeper) -> int:
    """The stack is walked once and then repeated; its key."""
    key = sleeper.wait()
    assert sleeper.walk_calls > 0
    again = sleeper.wait()
    assert (again, sleeper.walk_calls, sleeper.stacks) == (key, 0, [])
    return key


def check_differs(sleeper: Sleeper, key: int) -> int:
    """The stack that the thread has now is walked, and is another."""
    other = sleeper.wait()
    assert sleeper.walk_calls > 0 and other not in (key, 0)
    return other
