"""The tree of the page, which draws each node beside the one before and below its parent."""

from __future__ import annotations

import numpy as np

from bpfprof.query.work.table import work_of
from bpfprof.render.page_spans import page_spans
from tests.unit.render.profiles import ON_CPU, ProfileBuilder, python


def test_nodes_are_in_the_order_of_their_parents() -> None:
    made = ProfileBuilder()
    for tid in (100, 101, 102):
        thread = made.thread(tid)
        for callee in "yxz":  # one of each caller, again and again
            for caller in "bca":
                made.spend(thread, ON_CPU, 1_000_000, [python(caller), python(callee), python(caller + callee)])
    profile = made.build()
    columns = page_spans(profile, work_of(profile), np.arange(3)).columns
    parents = columns["node_parent"].astype(np.int64)
    assert len(parents) > 30
    assert (np.diff(parents) >= 0).all() and (parents[1:] < np.arange(1, len(parents))).all()
