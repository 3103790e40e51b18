"""A Profile and its work -> one sentence: what bounds the program, where, and what to try.

Each row of RULES is a condition on facts and a sentence with them; the first row that applies is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.model.profile import OFTEN, Profile
from bpfprof.query.answer.awaited import awaited_text, awaited_threads, beside_text, is_the_story
from bpfprof.query.answer.causes import CAUSES, MEMORY
from bpfprof.query.answer.device_sentences import (
    gpu_advice,
    host_late,
    is_host_late,
    spin_advice,
    spins,
    waits_for_gpu,
)
from bpfprof.query.answer.device_sentences import place_of as _in
from bpfprof.query.answer.facts import MAIN_HOLDER, STUCK, Facts
from bpfprof.query.answer.find_facts import facts_of
from bpfprof.query.answer.loop_sentences import meanwhile, more_threads, ready_tasks
from bpfprof.query.answer.percent import percent
from bpfprof.query.answer.training_sentences import data_bound, more_loaders, saves, waits_for_ranks
from bpfprof.query.answer.whole import Whole, whole_of_fronts
from bpfprof.query.threads.cpu_throttles import cpus_text
from bpfprof.query.work.shares import CHILD, DEVICE, GIL, LOCK, NATIVE, PYTHON, READY, SHARE_OF_WORD, SLEEP, SPIN
from bpfprof.query.work.table import Work

_MIN_SAMPLES_PER_S = 100  # of the least time that a verdict takes
_IN_KERNEL, _MANY_FAULTS = 0.25, 5_000  # from here on they are said
_MANY_READS = 50  # page faults a second that read from a disk: from here on they are said
_LIMIT_HITS = 10  # a second: from here on memory is short
_THRASHES = 0.2  # of the time for pages of memory, beside a kernel that makes room
_MAKES_ROOM = 0.05  # of the time for pages of memory: from here on it is short
_COLLECTS = 0.2  # of the CPU time
_MOSTLY = 0.5
_SAID = 0.05  # a part of this size is said
_NAMED = 0.35  # a share of this size names what bounds a program
_FEWER_COLLECTIONS = "gc.freeze() after the start, a higher gc.set_threshold(), or fewer objects that stay"
_BUSY = 0.25  # of the thread that works most; a program whose threads all work less has nothing to be accused of


@dataclass(frozen=True)
class Rule:
    """A row; `bound` as in the contract of the JSON report. advice: what to try, "" for nothing."""

    bound: str | Callable[[Facts], str]
    applies: Callable[[Facts], bool]
    sentence: Callable[[Facts], str]
    advice: str | Callable[[Facts], str] = ""
    names_share: bool = True  # it is about the largest share, and its place
    is_wait: bool = False  # its sentence may be of threads that wait for others: query/answer/awaited.py
    # It is of the time of all threads, which may have little to do with what the main thread waits for.
    is_sum: bool = False
    part: Callable[[Facts], float] = lambda facts: facts.part * facts.of_whole  # that it is about


@dataclass(frozen=True)
class Verdict:
    """share: of the whole, from 0 to 1. where: a frame of the user's own code, place: of Profile.frames; None, -1: none
    is known. whole: the time of the threads that count, of which the shares of a view are parts, too."""

    bound: str
    share: float
    sentence: str
    advice: str
    where: Frame | None
    place: int
    whole: Whole


def _first(share: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.first == share and facts.part >= _NAMED


def _for(facts: Facts) -> str:
    return f", for {facts.object}" if facts.object else ""


def _too_little(facts: Facts) -> str:
    if not facts.samples and not facts.is_of_all:
        return "Nothing of what was asked for was seen"
    seen = f"{facts.duration_ns / 1e9:.1f} s" if facts.duration_ns < facts.least_ns else f"{facts.samples} samples"
    return f"Too little to say ({seen}): record -d 10"


def _cpu(facts: Facts) -> str:
    """What is known of large parts of the CPU time, and of who waits for it."""
    collects = facts.collection_part
    said = f"; {percent(collects)} of the CPU time in garbage collections" if collects >= _COLLECTS else ""
    faults = f", {facts.faults_per_s:,.0f} page faults a second" if facts.faults_per_s >= _MANY_FAULTS else ""
    if facts.kernel_part >= _IN_KERNEL:
        said += f"; {percent(facts.kernel_part)} of the CPU time in the kernel{faults}{_at_limit(facts)}"
    return said + ready_tasks(facts)


def _at_limit(facts: Facts) -> str:
    """How often memory was at a limit, where that was often."""
    if facts.limit_hits_per_s < _LIMIT_HITS:
        return ""
    return f", {facts.limit_hits_per_s:,.0f} times a second at the memory limit of its control group"


def _is_short_of_memory(facts: Facts) -> bool:
    return facts.limit_hits_per_s >= _LIMIT_HITS or facts.room_part >= _MAKES_ROOM


def _is_thrashing(facts: Facts) -> bool:
    """The kernel makes room in memory and reads again: its CPU time and the waits for pages are one thing."""
    is_limited = facts.limit_hits_per_s >= _LIMIT_HITS and facts.kernel_part >= _MOSTLY
    return facts.first in ("python", "native") and is_limited and facts.parts[MEMORY] >= _THRASHES


def _memory(facts: Facts) -> str:
    what = "Short of memory: it waits" if _is_short_of_memory(facts) else "Waits"
    reads = f"; {facts.reads_per_s:,.0f} page faults a second read" if facts.reads_per_s >= _MANY_READS else ""
    return f"{what} {facts.of(MEMORY)} of the time for pages from the disk{_in(facts)}{reads}{_at_limit(facts)}."


def _device(facts: Facts) -> str:
    if facts.device_cpu_part < _MOSTLY:
        return _waits("a device")(facts)
    return f"CPU-bound in the kernel, in calls of a device: {facts.of(DEVICE)} of the time{_for(facts)}{_in(facts)}."


def _python(facts: Facts) -> str:
    below = f"; {facts.of(NATIVE)} in C below" if facts.parts[NATIVE] >= 0.05 else ""
    return f"CPU-bound in Python: {facts.of(PYTHON)} of the time{_in(facts, ' in ')}{below}{_cpu(facts)}."


def _native(facts: Facts) -> str:
    above = f"; {facts.of(PYTHON)} in Python" if facts.parts[PYTHON] >= 0.05 else ""
    what = f"; {percent(facts.operator_part)} of it in {facts.operator}" if facts.operator_part >= _NAMED else ""
    where = _in(facts, ", called from ")
    return f"CPU-bound in native code: {facts.of(NATIVE)} of the time{where}{what}{above}{_cpu(facts)}."


def _python_advice(facts: Facts) -> str:
    return _FEWER_COLLECTIONS if facts.collection_part >= _MOSTLY else "report --by function shows what is called"


def _native_advice(facts: Facts) -> str:
    if facts.collection_part >= _MOSTLY:  # of CPython, which its C functions begin, too
        return _FEWER_COLLECTIONS
    by, what = ("operator", "what is computed") if facts.operator else ("library", "whose code it is")
    return f"report --by {by} shows {what}"


def _ready(facts: Facts) -> str:
    threads = f"{facts.thread_count} working thread" + "s" * (facts.thread_count != 1)
    used = f"it got {facts.cpu_count:.2f} CPUs for {threads}{_limit(facts)}"
    return f"Short of CPU: ready {facts.of(READY)} of the time without one; {used}{_in(facts, '; most of it in ')}."


def _limit(facts: Facts) -> str:
    """What a CPU limit has to do with it, where that is more than a little."""
    if facts.limit_part < _SAID:
        return ""
    cpus = cpus_text(facts.limit_cpus)
    return f"; {facts.limit_of} may use {cpus}, and had used that up in {percent(facts.limit_part)} of its periods"


def _is_limited(facts: Facts) -> bool:
    return _first("ready")(facts) and facts.limit_part >= OFTEN


def _limited(facts: Facts) -> str:
    ready = f"ready {facts.of(READY)} of the time"
    return f"Stopped by a CPU limit: {ready}{_limit(facts)}{_in(facts, '; most of it in ')}."


def _more_of_limit(facts: Facts) -> str:
    return f"raise it ({facts.limit_setting}), or do less at a time"


def _is_oversubscribed(facts: Facts) -> bool:
    """More threads of one pool than CPUs, and that is what they wait for, on the run queue or for each other."""
    is_pool = facts.pool_part >= _MOSTLY and 0 < facts.pool_cpus < facts.pool_threads
    return is_pool and facts.parts[READY] + (facts.parts[SPIN] if facts.spin_part else 0) >= _NAMED


def _oversubscribed(facts: Facts) -> str:
    of = f" of {facts.pool_processes} processes" if facts.pool_processes > 1 else ""
    cpus = f"{facts.pool_cpus:g} CPU" + "s" * (facts.pool_cpus != 1)
    parts = [f"{facts.of(READY)} of the time ready without one"] if facts.parts[READY] >= _SAID else []
    parts += [_spinning(facts)] if facts.spin_part >= _SAID else []
    where = _in(facts, "; most of it in ")
    return f"Oversubscribed: {facts.pool_threads} threads of {facts.pool}{of} for {cpus}: {', '.join(parts)}{where}."


def _spinning(facts: Facts) -> str:
    return f"{percent(facts.spin_part)} of the CPU time spent spinning for each other"


def _fewer_threads(facts: Facts) -> str:
    """The setting with a value: the CPUs that there are, shared out over the processes."""
    count = max(1, int(facts.pool_cpus / facts.pool_processes))
    setting = facts.pool_setting.replace("()", f"({count})")
    setting += "" if setting != facts.pool_setting else f"={count}"
    return setting + (" for each process" if facts.pool_processes > 1 else "")


def _gil(facts: Facts) -> str:
    who = f"{facts.holder} holds it most ({percent(facts.holder_part)})"
    who = who if facts.holder_part >= MAIN_HOLDER else "no single function holds it: too much Python at once"
    return f"Bound by the GIL: threads wait {facts.of(GIL)} of the time for it; {who}."


def _lock(facts: Facts) -> str:
    held = f", held through {facts.inside} there" if facts.inside else ""
    most = "one lock" if facts.lock_part >= 0.6 else "locks"
    most += f" of {facts.object}" if facts.object else ""
    hog = f"; {facts.hog} has it" + (f" {percent(facts.hog_part)} of that" if facts.hog_part else " at the end")
    hog = hog if facts.hog else ""
    where = _in(facts, ", most for that taken in ")
    return f"Bound by {most}: threads wait {facts.of(LOCK)} of the time{where}{held}{hog}."


def _deadlocked(facts: Facts) -> str:
    where = f" in {facts.deadlock_where}" if facts.deadlock_where else ""
    more = f"; {facts.deadlocks - 1} more" if facts.deadlocks > 1 else ""
    if " -> " not in facts.deadlock:
        what = "what only it could do itself" if facts.deadlock_kind == "future" else "a lock that it holds itself"
        return f"Deadlocked: {facts.deadlock} waits{where} for {what}{more}."
    where = f",{where}" if where else ""
    what = "" if facts.deadlock_kind in ("pipe", "socket") else "what "
    return f"Deadlocked: {facts.deadlock}, each waits for {what}the next one{' has' * bool(what)}{where}{more}."


def _undo(facts: Facts) -> str:
    if facts.deadlock_kind == "future":
        return "no thread of a pool should wait for futures of that pool; give these a pool of their own"
    if facts.deadlock_kind == "pipe":
        return "read what a child writes, and close what it reads, before waiting for it: communicate(), Queue.get()"
    if facts.deadlock_kind == "gil":
        return "give the GIL back before C waits for a lock: Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release"
    if facts.deadlock_kind == "socket":
        return "each waits for the other to send: one has to begin, or to answer from a thread of its own"
    if " -> " not in facts.deadlock:
        return "dump shows both places; use an RLock, or take no lock in signal handlers and __del__"
    return "dump shows each stack; take these locks in one order everywhere"


def _waits(what: str) -> Callable[[Facts], str]:
    return lambda facts: (
        f"Waits for {what} {facts.said(facts.part)} of the time{_for(facts)}{_in(facts)}{meanwhile(facts)}."
    )


def _child(facts: Facts) -> str:
    did = f"; it was {facts.child}" if facts.child else ""
    return f"Waits for another process {facts.of(CHILD)} of the time{_in(facts)}{did}."


def _idle(facts: Facts) -> str:
    if not facts.working_ns:
        what = "sleep on purpose" if facts.is_idle_asleep else "wait for work"
        return f"Idle: its threads {what}" + (f", most in {facts.idle_where}." if facts.idle_where else ".")
    return f"Mostly idle: its busiest thread worked {percent(facts.busy_part)} of the time. Nothing stands out."


def _mixed(facts: Facts) -> str:
    largest = sorted(range(len(CAUSES)), key=lambda cause: -facts.parts[cause])[:3]
    named = ", ".join(f"{_NAMES[cause]} {facts.of(cause)}" for cause in largest if facts.parts[cause] >= 0.05)
    return f"Mixed: {named}{_in(facts, '; most in ')}."


_BOUNDS = {"memory": "disk", "other": "unknown"}
_NAMES = [SHARE_OF_WORD[cause].among for cause in CAUSES]

RULES = (
    Rule("stuck", lambda facts: bool(facts.deadlock), _deadlocked, _undo),
    Rule(
        "unknown",
        lambda facts: facts.samples < _MIN_SAMPLES_PER_S * facts.least_ns / 1e9 or facts.duration_ns < facts.least_ns,
        _too_little,
        names_share=False,
    ),
    Rule("stuck", lambda facts: facts.stuck_part >= STUCK, lambda facts: facts.stuck, lambda facts: facts.stuck_advice),
    Rule(
        lambda facts: facts.ranks_bound,
        lambda facts: facts.ranks_part > 0,
        waits_for_ranks,
        "record all ranks; compare of their recordings says which one is late, and by what",
        part=lambda facts: facts.ranks_part,
    ),
    Rule("idle", lambda facts: facts.busy_part < _BUSY, _idle, names_share=False),
    Rule(
        lambda facts: facts.late_bound,
        lambda facts: bool(facts.late),
        lambda facts: facts.late,
        "compare shows what each rank does in a step",
        part=lambda facts: facts.late_part,
    ),
    Rule(
        "data",
        lambda facts: facts.data_part + facts.loading_part >= _NAMED,
        data_bound,
        more_loaders,
        part=lambda facts: max(facts.data_part, facts.loading_part),
    ),
    Rule(
        lambda facts: _BOUNDS.get(facts.first, facts.first),
        lambda facts: facts.saving_part >= _NAMED,
        saves,
        "save less often, or beside the next steps (a thread of its own)",
        part=lambda facts: facts.saving_part,
    ),
    Rule("ready", _is_oversubscribed, _oversubscribed, _fewer_threads),
    Rule("launch", is_host_late, host_late, "fewer and larger calls: torch.compile, CUDA graphs, fused optimizers"),
    Rule("ready", _is_limited, _limited, _more_of_limit),
    Rule(
        "ready",
        _first("ready"),
        _ready,
        "give it more CPUs, or fewer threads; record -a shows who else uses them",
        is_sum=True,
    ),
    Rule("gil", _first("gil"), _gil, "fewer threads, or processes; shorten what the holder does"),
    Rule("lock", _first("lock"), _lock, "hold the lock for less; report --by lock shows who holds it", is_wait=True),
    Rule("disk", _is_thrashing, _memory, "give it more memory, or let it use less at a time"),
    Rule("python", _first("python"), _python, _python_advice, is_sum=True),
    Rule("native", _first("native"), _native, _native_advice, is_sum=True),
    Rule(
        "disk",
        lambda facts: _first("memory")(facts) and _is_short_of_memory(facts),
        _memory,
        "give it more memory, or let it use less at a time",
        is_wait=True,
    ),
    Rule(
        "disk",
        _first("memory"),
        _memory,
        "read files in large parts, or ahead (madvise), instead of page by page",
        is_wait=True,
    ),
    Rule(
        "disk", _first("disk"), _waits("the disk"), "write or sync less often, or in a thread of its own", is_wait=True
    ),
    Rule(
        "net",
        _first("net"),
        _waits("the network"),
        more_threads("ask for several things at once, or keep the answers"),
        is_wait=True,
    ),
    Rule("gpu", _first("gpu"), waits_for_gpu, gpu_advice),
    Rule("spin", _first("spin"), spins, spin_advice),
    Rule("device", _first("device"), _device, "offcpu shows the call and what the kernel does in it", is_wait=True),
    Rule(
        "sleep",
        _first("sleep"),
        lambda facts: f"Sleeps on purpose {facts.of(SLEEP)} of the time{_in(facts)}{meanwhile(facts)}.",
        more_threads(""),
    ),
    Rule("child", _first("child"), _child, "do something else meanwhile, or start it less often", is_wait=True),
    Rule("unknown", _first("other"), lambda facts: _waits(facts.waits_for or "something else")(facts)),
    Rule("mixed", lambda _facts: True, _mixed, is_sum=True),
)


def decide(facts: Facts) -> Rule:
    """The row that applies."""
    return next(rule for rule in RULES if rule.applies(facts))


def _advice(rule: Rule, facts: Facts) -> str:
    return rule.advice if isinstance(rule.advice, str) else rule.advice(facts)


def verdict_of(profile: Profile, work: Work) -> Verdict:
    """Of working threads; see query.work."""
    facts, where, whole = facts_of(profile, work)
    rule, beside = decide(facts), ""
    chain = awaited_threads(profile, work) if rule.is_wait or rule.is_sum else None
    is_story = chain is not None and rule.is_sum and is_the_story(profile, chain)
    if chain and is_story and not chain.is_largest:
        facts, where, whole = facts_of(profile, work, chain.fronts)
        rule, beside, chain = decide(facts), f" {beside_text(profile, chain)}", None
    is_named = rule.names_share
    bound = rule.bound if isinstance(rule.bound, str) else rule.bound(facts)
    share = rule.part(facts) if is_named else 1 - facts.busy_part if bound == "idle" else 0.0
    advice = _advice(rule, facts)
    sentence = rule.sentence(facts) + beside
    if chain and is_story:
        of_chain = next(each for each in RULES if each.bound == _BOUNDS.get(chain.causes[0][0], chain.causes[0][0]))
        bound, advice = str(of_chain.bound), _advice(of_chain, facts)
    elif not chain or not rule.is_wait or not chain.is_largest or chain.causes[0][0] != facts.first:
        chain = None
    if chain:
        share, sentence, where = chain.waits_part, awaited_text(profile, chain), chain.frame
        whole = whole_of_fronts(profile, work, chain.fronts)
    where = where if is_named else -1
    return Verdict(bound, share, sentence, advice, profile.frames[where] if where >= 0 else None, where, whole)
