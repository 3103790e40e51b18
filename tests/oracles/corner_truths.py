"""What each program of the corners may be seen to do: its Python functions from root to leaf, as a regular expression.

A path is the names of the functions that the program itself defines, joined by `>`; functions of libraries are left
out of it. `G` stands where a greenlet begins. `BELOW` are functions of C and what must be the next Python function
rootward of each, where the interpreter's library has their names.
"""

from __future__ import annotations

_INNER = r"turn_{0}(>(key_{0}|counts_{0}))?(>burn_{0})?|turn_{0}>nap_{0}"
_MAIN = "<module>>main>"


def _turn(number: int) -> str:
    return f"<module>(>({_INNER.format(number)}))?"


# A greenlet that just begins, or has ended, has no function.
BARE = "G"
# Kind -> (package, paths)
GREENLETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ping_pong": (
        "greenlet",
        ("G>runs_ping(>ping)*(>burn|>nap)?", "G>runs_pong(>pong)*(>burn)?", f"{_MAIN}ping_pong"),
    ),
    "in_callbacks": (
        "greenlet",
        (
            "G>sorts(>key(>burn)?)?",
            "G>maps(>mapped(>burn|>nap)?)?",
            "G>quick_sorts(>compares(>burn)?)?",
            f"{_MAIN}in_callbacks",
        ),
    ),
    "nested": (
        "greenlet",
        (
            "G>inner(>burn|>nap)?",
            "G>middle(>burn)?",
            "G>outer(>burn)?",
            f"{_MAIN}nested(>starts(>burn)?)?",
        ),
    ),
    "reborn": ("greenlet", ("G>lives(>burn|>dies(>burn|>nap)?)?", f"{_MAIN}reborn")),
    "with_generators": (
        "greenlet",
        (
            "G>consumes(>passes_on(>counts(>burn)?)?)?",
            "G>drives(>awaits(>__await__(>burn|>nap)?)?)?",
            f"{_MAIN}with_generators",
        ),
    ),
    "spawned": (
        "greenlet",
        (
            "G>synchronous(>synchronous)*(>burn|>awaits_only)?",
            f"{_MAIN}spawned(>(repeats(>burn|>greenlet_spawn)?|all_of_them))?",
        ),
    ),
    "in_threads": ("greenlet", ("G>left(>burn)?", "G>right(>nap)?", "turns", f"{_MAIN}in_threads")),
    "thrown": (
        "greenlet",
        ("G>catches(>burn|>cleans_up(>burn|>nap)?)?", f"{_MAIN}thrown(>throws)?"),
    ),
    "gevent_pool": ("gevent", ("G(>sleeps(>burn)?|>asks(>burn)?|>answers(>burn)?)?", f"{_MAIN}gevent_pool")),
    "gevent_threads": (
        "gevent",
        ("G(>patched(>burn|>nap)?|>asks_pool(>burn)?|>in_pool(>burn)?)?", "in_pool(>burn)?", f"{_MAIN}gevent_threads"),
    ),
    "eventlet_pool": ("eventlet", ("G(>gives(>burn)?|>takes(>burn)?)?", f"{_MAIN}eventlet_pool")),
}
INTERPRETERS: dict[str, tuple[str, ...]] = {
    "alone": (f"{_MAIN}alone(>burn|>run(>{_turn(1)})?)?",),
    "nested": (f"{_MAIN}nested(>burn|>run(><module>(>runs_1(><module>(>runs_2(>{_turn(3)})?)?)?)?)?)?",),
    "two_chains": (f"chain_runs(>run(><module>(>runs_1(>{_turn(2)})?)?)?)?", f"{_MAIN}two_chains"),
    "in_threads": (
        f"thread_runs(>nap|>run(>({_turn(1)}|{_turn(2)}))?)?",
        "stays(>burn|>nap)?",
        f"{_MAIN}in_threads",
    ),
    "from_callback": (f"{_MAIN}from_callback(>key(>run(>{_turn(1)})?)?|>compares(>run(>{_turn(2)})?)?)?",),
    # A generator function runs when it is called, too: to make the generator.
    "generators": (
        f"{_MAIN}generators(>by_tuple(><genexpr>)?|>by_sum(>short|><genexpr>(>short)?)?"
        "|>by_map(>outer(>short)?|>mapped(><genexpr>)?)?"
        "|>by_zip(><listcomp>)?(>short|>outer(>short)?)?|>by_join(>short|><genexpr>(>short)?)?"
        "|>by_any((><genexpr>)?(>outer(>short)?)?)?)?",
    ),
    "deep_generators": (
        f"{_MAIN}deep_generators(>consumes(>deep)*(>burn)?|>consumes_each(><genexpr>|(>deep)*(>burn)?))?",
    ),
}
# Before 3.11 the list of Python frames has those of the outermost interpreter alone (stacks/merge.py).
ONE_INTERPRETER = ("generators", "deep_generators")
# Function of C -> what may have called it.
BELOW = {
    "time_sleep": r"nap(_\d)?|in_pool|wait",  # that of eventlet's hub
    "builtin_sorted": r"sorts|turn_\d|from_callback",
    "map_next": r"maps|by_map",
    "builtin_sum": r"mapped|by_sum",
    "builtin_any": r"by_any",
    "qsort": r"quick_sorts|from_callback",
    "zip_next": r"by_zip|<listcomp>",
    "_PyUnicode_JoinArray": r"by_join|thread_runs",  # which has an f-string
}
