"""What is said of event loops, and of the tasks that wait for them or for the threads of their executors."""

from __future__ import annotations

from collections.abc import Callable

from bpfprof.query.answer.facts import Facts


def meanwhile(facts: Facts) -> str:
    """Beside a wait: who waits with it."""
    if facts.in_loop:
        tasks = f", and {facts.loop_tasks} tasks with it" if facts.loop_tasks > 1 else ""
        return f"; the event loop waits meanwhile{tasks}"
    if facts.executor_tasks:
        threads = f"the {facts.executor_threads} threads" if facts.executor_threads > 1 else "the only thread"
        return f"; {facts.executor_tasks} tasks have or want {threads} of an executor"
    return ""


def ready_tasks(facts: Facts) -> str:
    """Beside what an event loop computes: who could go on."""
    if not facts.in_loop or not facts.ready_tasks:
        return ""
    if facts.ready_tasks == 1:
        return "; another task of the event loop is ready and waits"
    return f"; {facts.ready_tasks} other tasks of the event loop are ready and wait"


def more_threads(advice: str) -> Callable[[Facts], str]:
    """The same, unless an executor has too few threads."""
    more = "give the executor more threads, or await what they wait for"
    return lambda facts: more if facts.executor_tasks and not facts.in_loop else advice
