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
    """What the rules ask and what their sentences say; parts are of the working time, from 0 to 1.

    of_whole: of the time of the threads that count, what is not idle; sentences say parts of that time.

    least_ns: of less there is too little to say. first: the largest of CAUSES, CPU time in Python and native code
    together as the larger of them. busy_part: of its wall time, how much the thread that works most worked. cpu_count:
    CPUs used on average. where: its place, "" if none is known; where_part: of the share; idle_where: what the threads
    mostly wait in, is_idle_asleep: whether most of that is sleep. lock_part: of all waits for locks, those for the
    first; holder: who held it, "" if nobody for most of the time; inside: what the holder waited for meanwhile; hog:
    who held it most, "" if no single one did, or has it at the end, where hog_part is 0. object: what the first share
    was for mostly. child: what the awaited process did. waits_for: the reason of OTHER. kernel_part: of the CPU time
    that in the kernel; faults_per_s: page faults in a second. in_loop: the place is called by the event loop of
    asyncio, which waits meanwhile; loop_tasks: how many of its tasks did at a time. operator: that of a framework or
    library with most of the CPU time, operator_part: its part of it. data_part: of the time of training loops that in
    which they waited for data, loading_part: and loaded it themselves; from so many loaders, which worked for
    loaders_busy of theirs, while loaders_needed would hide it, and there are CPUs for loaders_most (0: not known).
    loading_mix, loading_first, loading_where: what that is spent on, and where. cpus: that loops may use, 0: not
    known. pool: whose threads work or want to most, with how many of them and of their processes, the CPUs that those
    may use (0: not known) and what sets the number; pool_part: of all time on a CPU or ready theirs; spin_part: of all
    CPU time that in which they wait for each other. stuck_part: of the working time that of threads that are stuck;
    stuck, stuck_advice: what those with most wait for. limit_of: the control group or container whose CPU limit
    stopped those that were ready; limit_cpus: what it may use, which it had used up in limit_part of its periods;
    limit_setting: what sets that, to as much as they would have used. gpu_does: what is mostly waited for of a GPU,
    one of device_facts.DOES; gpu_call: the function. launch_part, feeding_part: of the working time that in calls that
    launch work on a device, and on a CPU in frameworks that do. launches: how many such calls of one process there
    were in a launches_in, a step or a second, of launch_ns each, where calls were counted. saving_part: of the time of
    the threads that count that in which they save checkpoints; saving_mix, saving_where: what that is spent on, where.
    ranks_part: of the time of the main thread that in which it waits for other ranks, which are not recorded;
    ranks_where, ranks_phase: where, and in which phase of a step; ranks_bound: by what. late: the sentence on a rank
    that others wait for, "" where none is late; late_part: of a step; late_bound: by what. deadlock: the threads that
    wait for one another at the end, "" where none do; deadlock_where: where the first does; deadlocks: how many;
    deadlock_kind: of WaitsFor, of the first. is_of_all: of no part of a recording.
    """

    samples: int = 1000
    duration_ns: int = 10_000_000_000
    least_ns: int = 1_000_000_000
    is_of_all: bool = True
    working_ns: int = 1
    busy_part: float = 1.0
    first: str = ""
    part: float = 0.0
    of_whole: float = 1.0
    parts: tuple[float, ...] = (0.0,) * len(CAUSES)
    cpu_count: float = 0.0
    thread_count: int = 1
    where: str = ""
    where_part: float = 0.0
    idle_where: str = ""
    is_idle_asleep: bool = False
    lock_part: float = 0.0
    holder: str = ""
    holder_part: float = 0.0
    inside: str = ""
    hog: str = ""
    hog_part: float = 0.0
    object: str = ""
    child: str = ""
    waits_for: str = ""
    kernel_part: float = 0.0
    faults_per_s: float = 0.0
    reads_per_s: float = 0.0
    limit_hits_per_s: float = 0.0
    room_part: float = 0.0
    device_cpu_part: float = 0.0
    in_loop: bool = False
    loop_tasks: int = 0
    operator: str = ""
    operator_part: float = 0.0
    data_part: float = 0.0
    loading_part: float = 0.0
    loaders: int = 0
    loaders_needed: int = 0
    loaders_busy: float = 0.0
    loading_first: str = ""
    loading_mix: str = ""
    loaders_most: int = 0
    loading_where: str = ""
    cpus: float = 0.0
    pool: str = ""
    pool_threads: int = 0
    pool_processes: int = 1
    pool_cpus: float = 0.0
    pool_part: float = 0.0
    pool_setting: str = ""
    spin_part: float = 0.0
    stuck_part: float = 0.0
    stuck: str = ""
    stuck_advice: str = ""
    limit_of: str = ""
    limit_cpus: float = 0.0
    limit_part: float = 0.0
    limit_setting: str = ""
    gpu_does: str = ""
    gpu_call: str = ""
    launch_part: float = 0.0
    feeding_part: float = 0.0
    launches: float = 0.0
    launches_in: str = "second"
    launch_ns: float = 0.0
    saving_part: float = 0.0
    saving_mix: str = ""
    saving_where: str = ""
    ranks_part: float = 0.0
    ranks_bound: str = "net"
    ranks_where: str = ""
    ranks_phase: str = ""
    late: str = ""
    late_part: float = 0.0
    late_bound: str = "unknown"
    deadlock: str = ""
    deadlock_where: str = ""
    deadlock_kind: str = "lock"
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
