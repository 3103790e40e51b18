"""Facts -> the sentences of verdicts on training loops: the data that they wait for, the checkpoints that they save."""

from __future__ import annotations

from bpfprof.query.answer.facts import Facts
from bpfprof.query.answer.percent import percent
from bpfprof.query.work.shares import SHARE_OF_WORD

DOING = {word: share.doing for word, share in SHARE_OF_WORD.items()}


def data_bound(facts: Facts) -> str:
    what = f"; that is {facts.loading_mix or DOING[facts.loading_first]}" if facts.loading_first else ""
    what += f" in {facts.loading_where}" if what and facts.loading_where else ""
    if facts.data_part < facts.loading_part:
        return f"Data-bound: the loop loads data itself for {percent(facts.loading_part)} of the time{what}."
    whom = f" from {_loaders(facts.loaders)}" if facts.loaders else ""
    whom += f", busy {percent(facts.loaders_busy)} of theirs" if facts.loaders else ""
    return f"Data-bound: the loop waits {percent(facts.data_part)} of the time for data{whom}{what}."


def _loaders(count: int) -> str:
    return f"{count} loader" + "s" * (count != 1)


def more_loaders(facts: Facts) -> str:
    """So many that they make the data in the time that the rest of a step takes."""
    count = facts.loaders_needed
    if facts.loading_first == "ready":
        return "give it more CPUs; record -a shows who else uses them"
    if count <= facts.loaders or not facts.loading_first:
        return "load it ahead, or cheaper"
    if 0 < facts.loaders_most < count:
        most = max(facts.loaders_most, facts.loaders)
        more = f"{_loaders(most)} (num_workers={most}) would shorten it; " if most > facts.loaders else ""
        return f"{more}{count} would hide it, and there are {facts.cpus:g} CPUs: load it cheaper"
    return f"{_loaders(count)} (num_workers={count}) would hide it"


def waits_for_ranks(facts: Facts) -> str:
    """In a call that waits for a device, too, it is not known for which."""
    whom = "the GPU and other ranks" if facts.ranks_bound == "gpu" else "other ranks"
    where = f": {facts.ranks_where}" if facts.ranks_where else ""
    phase = f", in {facts.ranks_phase}" if facts.ranks_phase else ""
    return f"Waits for {whom} {percent(facts.ranks_part)} of the time{where}{phase}."


def saves(facts: Facts) -> str:
    where = f": {facts.saving_where}" if facts.saving_where else ""
    what = f"; that is {facts.saving_mix or DOING[facts.first]}" if facts.saving_mix or facts.first in DOING else ""
    return f"Saves checkpoints {percent(facts.saving_part)} of the time{where}{what}."
