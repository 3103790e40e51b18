"""The JSON of a report: that what only waited on a CPU is a part of the waits, of each thread and of all."""

from __future__ import annotations

import json

from bpfprof.render.formats import RenderOptions
from bpfprof.render.report_json import render_json
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait


def test_time_on_a_cpu_that_only_waited_is_a_part_of_the_waits() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(101, "waiter"), made.thread(102, "worker")
    made.spend(waiter, ON_CPU, 60 * MS, [python("f"), native("cuStreamSynchronize", "/usr/lib/libcuda.so.1")])
    made.spend(waiter, ON_CPU, 10 * MS, [python("f"), native("sched_yield")])
    made.spend(waiter, ON_CPU, 10 * MS, [python("f")])
    made.spend(waiter, OFF_CPU, 20 * MS, [python("f"), native("sleep"), wait("sleep")])
    made.spend(worker, ON_CPU, 100 * MS, [python("work", line=9)])
    found = json.loads(render_json(made.build(), RenderOptions()))
    of_thread = [(it["cpu_s"], it["wait_s"], it["cpu_waiting_s"]) for it in found["threads"]]
    assert of_thread == [(0.01, 0.09, 0.07), (0.1, 0, 0)]
    totals = found["totals"]
    assert (totals["cpu_s"], totals["wait_s"], totals["cpu_waiting_s"]) == (0.11, 0.09, 0.07)
