"""Ranks behind a slow network: by the round trips of their connections, where all wait in communication."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bpfprof.model.profile import Connection
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.table import work_of
from bpfprof.render.ranks import compare_sentence, render_compare_json
from bpfprof.render.ranks_page import render_ranks_page
from tests.unit.query.steps.test_ranks import INFO, MS, Ranks, compared

FAST, SLOW = 60_000, 40 * MS
WAIT_MS = 60  # in communication, of a step of 100


def carrying(*ns: int) -> tuple[Connection, ...]:
    return tuple(Connection(f"10.0.0.{number}:2000", each, 1 << 20) for number, each in enumerate(ns))


def of(
    *connections: tuple[int, ...], apart: frozenset[int] = frozenset(), takes_ms: int = 40 + WAIT_MS, slow: str = ""
) -> Ranks:
    ranks = Ranks(len(connections))
    by_pid = {100 + rank: carrying(*each) for rank, each in enumerate(connections)}
    ranks.made.info = replace(INFO, connections=by_pid, in_other_network=apart)
    for _ in range(10):
        ranks.step({0: slow} if slow else {}, takes_ms=takes_ms)
    return ranks


@pytest.mark.parametrize(
    "connections",
    [
        [(FAST, SLOW), (SLOW, SLOW), (FAST, SLOW)],
        [(FAST, SLOW), (SLOW, SLOW), (SLOW, FAST), (FAST, FAST)],
        [(FAST,), (10 * FAST * 17,), (FAST,)],  # 10 ms
    ],
)
def test_the_rank_that_has_no_other_connections(connections: list[tuple[int, ...]]) -> None:
    found = compared(of(*connections).made.build())
    assert found.cause is None and found.network is not None and found.network.place == 1
    assert (found.network.ns, found.network.others_ns) == (connections[1][0], FAST)
    assert found.network.wait_ns == pytest.approx((WAIT_MS + 5) * MS)
    sentence = compare_sentence(found)
    assert (
        sentence.startswith("Rank 1 is behind a slow network: a round trip takes ")
        and "between others 60.0 us" in sentence
    )
    assert sentence.endswith("each waits 65.00 ms a step in communication, most in train (train.py:14).")
    verdict = json.loads(render_compare_json(found, [], []))["verdict"]
    cause = verdict["details"]
    assert (
        verdict["rank"] == 1
        and verdict["cause"] == "network in communication"
        and cause["state"] == "network"
        and cause["phase"] == "communication"
    )
    assert verdict["late_s"] == cause["state_more_s"]
    assert (cause["function"], cause["line"]) == ("train", 14) and cause["state_more_s"] == pytest.approx(0.065)
    assert cause["round_trip_s"] == connections[1][0] / 1e9 and cause["others_round_trip_s"] == FAST / 1e9


@pytest.mark.parametrize(("takes_ms", "is_network"), [(200, True), (65, False)])
def test_a_rank_that_is_late_by_less_than_it_waits(takes_ms: int, is_network: bool) -> None:
    """Another program takes a part of its CPU."""
    found = compared(of((SLOW,), (SLOW,), takes_ms=takes_ms, slow="hog").made.build())
    assert (found.network is not None, found.is_slow) == (is_network, not is_network)


@pytest.mark.parametrize(("apart", "name"), [({101}, "rank 1"), (set(), None), ({100, 101}, None)])
def test_of_two_ranks_the_one_elsewhere(apart: set[int], name: str | None) -> None:
    found = compared(of((SLOW,), (SLOW,), apart=frozenset(apart)).made.build())
    verdict = json.loads(render_compare_json(found, [], []))["verdict"]
    assert verdict["name"] == name and verdict["cause"] == "network in communication"
    assert ("between rank 0 and rank 1" in verdict["sentence"]) == (name is None)
    title = f"{name} is behind a slow network" if name else "the network between them is slow"
    assert f"<title>2 ranks: {title} - " in render_ranks_page(found, [], [])


@pytest.mark.parametrize(
    "ranks",
    [
        of((FAST, FAST), (2 * FAST, FAST), (FAST, FAST)),
        of((SLOW,), (2 * SLOW,), (SLOW,)),  # all are far from each other
        of((FAST,), (SLOW,), ()),  # of one nothing is known
        of((FAST,), (SLOW,), (FAST,), takes_ms=41),  # they hardly wait
        of((MS // 2,), (MS // 2,)),
    ],
)
def test_networks_that_are_no_answer(ranks: Ranks) -> None:
    found = compared(ranks.made.build())
    assert found.network is None and "No rank is slower" in compare_sentence(found)


def test_a_connection_for_something_else_does_not_count() -> None:
    ranks = of((FAST,), (SLOW,), (FAST,))
    info = ranks.made.info
    more = (*info.connections[101], Connection("127.0.0.1:29500", FAST // 10, 1000))
    ranks.made.info = replace(info, connections={**info.connections, 101: more})
    found = compared(ranks.made.build()).network
    assert found is not None and found.place == 1


def test_the_verdict_of_one_recording_of_them_says_so() -> None:
    profile = of((FAST, SLOW), (SLOW, SLOW), (FAST, SLOW)).made.build()
    found = verdict_of(profile, work_of(profile))
    assert found.bound == "net" and found.where is not None and (found.where.name, found.where.line) == ("train", 14)
    assert found.sentence.startswith(
        "Rank 1 is behind a slow network: a round trip takes 40.0 ms, between others 0.1 ms;"
    )
    assert found.share == pytest.approx(0.65, abs=0.05)


def test_a_rank_that_is_late_is_named_before_its_network() -> None:
    ranks = of((FAST,), (FAST,), (SLOW,))
    for _ in range(20):
        ranks.step({1: "sleep"})
    found = compared(ranks.made.build())
    assert found.network is None and found.cause is not None and found.cause.state.state == "sleep"
