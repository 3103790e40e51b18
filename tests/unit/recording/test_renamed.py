"""Stacks with code that had other names at other times: each row of a recording gets the names of its moment."""

from __future__ import annotations

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.samples import EVENT_DTYPE, NAME_DTYPE, SAMPLE_DTYPE, WAIT_DTYPE
from bpfprof.recording.contents import Recording
from bpfprof.recording.renamed import split_renamed
from bpfprof.stacks.stitch import StackSource
from tests.unit.recording.hand_made import HandMade, row


def made() -> tuple[Recording, list[int]]:
    """A stack of three frames, of which two were renamed (at 100 and 300, and at 200), and one of none."""
    hand = HandMade()
    hand.process(100)
    code = hand.code("f")
    memory = hand.file("[memory]", "memory")
    first, second, third = (hand.native(memory, (name, "", 0, 0), address=i) for i, name in enumerate("abc"))
    stacks = [
        hand.stack((code, 4, 0), native=(first, second, third)),
        hand.stack((code, 8, 0), native=(third,)),
        hand.stack((code, 6, 1), native=(second,)),
    ]
    recording = Recording()
    for chunk in hand.chunks():
        recording.take(chunk)
    texts = len(recording.texts)
    recording.texts += ["a at 100", "a at 300", "b at 200"]
    later = [(first, 0, 100), (first, 1, 300), (second, 2, 200)]
    names = [
        row(NAME_DTYPE, native=native, function=texts + text, since_ns=since).reshape(1)
        for native, text, since in later
    ]
    recording.names = np.concatenate([recording.names, *names])
    return recording, stacks


def shown(recording: Recording, stack: int) -> list[str]:
    return [frame.name for frame in StackSource(recording).frames(stack, 0) if frame.kind == FrameKind.NATIVE]


def test_every_moment_has_its_names() -> None:
    recording, (all_three, constant, other) = made()
    moments = [(50, all_three), (100, all_three), (250, all_three), (400, all_three), (400, constant), (400, other)]
    rows = [row(SAMPLE_DTYPE, time_ns=time_ns, stack=stack).reshape(1) for time_ns, stack in moments]
    recording.samples = np.concatenate(rows)
    split_renamed(recording)
    found = [shown(recording, int(stack)) for stack in recording.samples["stack"]]
    assert found == [
        ["c", "b", "a"],
        ["c", "b", "a at 100"],
        ["c", "b at 200", "a at 100"],
        ["c", "b at 200", "a at 300"],
        ["c"],
        ["b at 200"],
    ]
    assert recording.samples["stack"][0] == all_three and recording.samples["stack"][4] == constant
    assert len(recording.stacks) == 3 + 4
    assert len(recording.python_frames) == len(recording.stacks) and not recording.names["native"].max() > 6


def test_a_wait_has_the_names_of_when_it_began() -> None:
    recording, (stack, *_) = made()
    values = {"stack": stack, "waker_stack": stack, "blocked_ns": 120, "runqueue_ns": 60}
    recording.waits = row(WAIT_DTYPE, time_ns=270, **values).reshape(1)
    recording.events = row(EVENT_DTYPE, time_ns=90, stack=stack).reshape(1)
    split_renamed(recording)
    wait = recording.waits[0]
    assert shown(recording, int(wait["stack"])) == ["c", "b", "a"]
    assert shown(recording, int(wait["waker_stack"])) == ["c", "b at 200", "a at 100"]
    assert recording.events["stack"][0] == stack


def test_nothing_changes_where_nothing_was_renamed() -> None:
    recording, _ = made()
    recording.names = recording.names[recording.names["since_ns"] == 0]
    before = len(recording.stacks), len(recording.natives), len(recording.native_frames)
    split_renamed(recording)
    assert before == (len(recording.stacks), len(recording.natives), len(recording.native_frames))
