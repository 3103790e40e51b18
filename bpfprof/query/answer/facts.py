"""What the rules of a verdict ask for, and what their sentences say."""

from __future__ import annotations

from bpfprof.dataclass import dataclass
from bpfprof.query.answer.causes import CAUSES
from bpfprof.query.answer.percent import percent
from bpfprof.query.work.shares import NATIVE, PYTHON

STUCK = 0.35  # of the working time: so much of stuck threads bounds the program
MAIN_HOLDER = 0.25  # who held a lock so much of the time is its main holder


@dataclass(frozen=True)
class Facts:
    """What the rules ask and what their sentences say.

    Times end in _ns. A part is from 0 to 1, of the working time where nothing else is said. A text is "" where there
    is nothing to say, a number 0.
    """

    # What was recorded
    samples: int = 1000  # of clocks, and of waits as many as a clock of 100 Hz would have taken
    duration_ns: int = 10_000_000_000
    least_ns: int = 1_000_000_000  # of less there is too little to say
    is_of_all: bool = True  # of no part of a recording

    # Who works, and on how many CPUs
    working_ns: int = 1
    of_whole: float = 1.0  # of the time of the threads that count, what is not idle; sentences say parts of that time
    busy_part: float = 1.0  # of its wall time, how much the thread that works most worked
    cpu_count: float = 0.0  # CPUs used on average
    thread_count: int = 1
    collection_part: float = 0.0  # of the CPU time, that in collections of garbage
    idle_where: str = ""  # what the threads mostly wait in
    is_idle_asleep: bool = False  # most of that is sleep

    # The largest cause, and its place
    first: str = ""  # of CAUSES; CPU time in Python and in native code together are the larger of them
    part: float = 0.0
    parts: tuple[float, ...] = (0.0,) * len(CAUSES)
    where: str = ""
    where_part: float = 0.0  # of the largest cause
    in_loop: bool = False  # the place is called by the event loop of asyncio, which waits meanwhile
    loop_tasks: int = 0  # how many of its tasks did something at a time
    ready_tasks: int = 0  # how many of them could have gone on
    executor_tasks: int = 0  # have or want a thread of an executor, where these are too few, and the threads
    executor_threads: int = 0
    object: str = ""  # what the largest cause was for mostly
    child: str = ""  # what the awaited process did
    waits_for: str = ""  # the reason, where it is one of no other cause
    operator: str = ""  # of a framework or library, that with most of the CPU time
    operator_part: float = 0.0  # of the CPU time

    # Locks
    lock_part: float = 0.0  # of all waits for locks, those for the first
    holder: str = ""  # who held it for most of the time
    holder_part: float = 0.0
    inside: str = ""  # what the holder waited for meanwhile
    hog: str = ""  # the single one that held it most
    hog_part: float = 0.0  # 0 where one has it at the end

    # What the kernel counted
    kernel_part: float = 0.0  # of the CPU time
    faults_per_s: float = 0.0  # page faults
    reads_per_s: float = 0.0  # page faults that read from a disk
    limit_hits_per_s: float = 0.0  # of a control group's memory
    room_part: float = 0.0  # of the waits for memory, those in which room is made in it
    limit_of: str = ""  # the control group or container whose CPU limit stopped those that were ready
    limit_cpus: float = 0.0  # what it may use
    limit_part: float = 0.0  # of its periods, those in which it had used that up
    limit_setting: str = ""  # what sets that, to as much as they would have used

    # Training loops that wait for data
    data_part: float = 0.0  # of the loops' time
    loading_part: float = 0.0  # of the loops' time that in which they load data themselves
    loaders: int = 0
    loaders_busy: float = 0.0  # of the loaders' time
    loaders_needed: int = 0  # so many would hide it
    loaders_most: int = 0  # for so many there are CPUs
    loading_mix: str = ""  # what loading is spent on
    loading_first: str = ""  # the most of that
    loading_where: str = ""
    cpus: float = 0.0  # that loops may use

    # Checkpoints
    saving_part: float = 0.0  # of the time of the threads that count
    saving_mix: str = ""  # what that is spent on
    saving_where: str = ""

    # The largest pool of threads
    pool: str = ""
    pool_threads: int = 0
    pool_processes: int = 1
    pool_cpus: float = 0.0  # that its processes may use
    pool_part: float = 0.0  # of all time on a CPU or ready
    pool_setting: str = ""  # what sets the number of its threads
    spin_part: float = 0.0  # of all CPU time that in which its threads wait for each other

    # Devices
    device_cpu_part: float = 0.0  # of what is for the device, that on a CPU
    gpu_does: str = ""  # what is mostly waited for of a GPU, one of device_facts.DOES
    gpu_call: str = ""  # the function
    launch_part: float = 0.0  # in calls that launch work on a device
    feeding_part: float = 0.0  # on a CPU in frameworks that do
    launches: float = 0.0  # such calls of one process, where calls were counted
    launches_in: str = "second"  # or step
    launch_ns: float = 0.0  # of one

    # Ranks
    ranks_part: float = 0.0  # of the main thread's time, that in which it waits for ranks that are not recorded
    ranks_bound: str = "net"
    ranks_where: str = ""
    ranks_phase: str = ""  # of a step
    late: str = ""  # the sentence on a rank that others wait for
    late_part: float = 0.0  # of a step
    late_bound: str = "unknown"

    # Threads that are stuck at the end
    stuck_part: float = 0.0
    stuck: str = ""  # what those with most of that wait for
    stuck_advice: str = ""
    deadlock: str = ""  # the threads that wait for one another
    deadlock_where: str = ""  # where the first does
    deadlock_kind: str = "lock"  # of WaitsFor, of the first
    deadlocks: int = 0

    @property
    def cpu_part(self) -> float:
        """Of the working time that on a CPU."""
        return self.parts[PYTHON] + self.parts[NATIVE]

    def said(self, part: float) -> str:
        """`38%`: a part of the working time as one of the time of the threads that count."""
        return percent(self.of_whole * part)

    def of(self, cause: int) -> str:
        """The same of a place in CAUSES."""
        return self.said(float(self.parts[cause]))
