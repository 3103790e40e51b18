"""Stacks that wait for what they have asked a server for, and those that wait for what it says of its own accord."""

from __future__ import annotations

import re

from bpfprof.query.code.stack_frames import Bools, StackFrames

# Whoever calls one of these waits for a server's answer, whatever that wait is made of; if it does not listen.
_CLIENTS = frozenset(
    (
        *("aiobotocore", "aiohttp", "aiomysql", "asyncmy", "asyncpg", "elastic_transport", "grpc", "httpcore", "httpx"),
        *("motor", "psycopg", "pymongo", "redis"),
    )
)
_LISTENS = re.compile(r"pubsub|websocket|listen|notif|subscri", re.IGNORECASE)


def ask(stack_frames: StackFrames) -> Bools:
    """Whether each stack waits for the answer to something it asked for."""
    return stack_frames.call_library(_CLIENTS) & ~listen(stack_frames)


def listen(stack_frames: StackFrames) -> Bools:
    """Whether each stack waits for what a server says of its own accord, by the names of its functions."""
    return stack_frames.have([bool(_LISTENS.search(frame.name)) for frame in stack_frames.frames])
