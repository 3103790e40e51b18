"""How often a stack that is taken for the thread's last one is another: each is walked all the same, and compared."""

from __future__ import annotations

import sys

from figures import PROGRAMS, python, record_here, running, show

from bpfprof import abi

_SECONDS = 4
_WRONG_LIMIT = 0.001
_TARGETS = {
    "training_loop": (sys.executable, "training_loop.py"),
    "library_callbacks": (python(), "library_callbacks.py"),
    "switcher": (python(), "switcher.py", "--depth", "25"),
    "called_again": (python(), "called_again.py"),
    "call_order": (python(), "call_order.py"),
    "oracle": (python(), "oracle.py"),
    "gil_fight": (python(), "gil_fight.py", "8"),
    "token_ring": (python(), "token_ring.py"),
    "async_sockets": (python(), "async_sockets.py"),
    "worker_pool": (python(), "worker_pool.py"),
}


def main() -> None:
    repeated = wrong = 0
    for name, (interpreter, program, *arguments) in _TARGETS.items():
        counts: list[int] = []
        with running(interpreter, str(PROGRAMS / program), *arguments) as process:
            record_here(
                [process.pid],
                _SECONDS,
                at_end=counts.extend,
                check_repeats=True,
            )
        found = counts[abi.Status["BP_COUNT_REPEATED"]]
        missed = counts[abi.Status["BP_COUNT_REPEAT_WRONG"]]
        show(f"repeated_stacks_{name}", found, "stacks")
        show(f"repeated_stacks_{name}_wrong", missed, "stacks")
        repeated, wrong = repeated + found, wrong + missed
    show("repeated_stacks_wrong", 100 * wrong / max(1, repeated), "%")
    if wrong > _WRONG_LIMIT * repeated:
        sys.exit("more than 0.1 % of the repeated stacks were others")


if __name__ == "__main__":
    main()
