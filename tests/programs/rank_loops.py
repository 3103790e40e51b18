"""Ranks of a training loop without a framework, of which rank 1 sleeps in its backward pass: rank_loops.py COUNT.

A collective over sockets ends each step. Prints "ready" and the pids when all are under way, and ends with its stdin.
"""

import os
import socket
import subprocess
import sys
import time

from lifetime import die_with_input, die_with_parent

COMPUTE_S, SLEEP_S, STEPS_BEFORE = 0.008, 0.2, 3


def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def forward():
    busy(COMPUTE_S)


def backward(rank):
    busy(COMPUTE_S)
    if rank == 1:
        hook()


def hook():
    time.sleep(SLEEP_S)


def optimizer_step():
    busy(COMPUTE_S)


def all_reduce(ends, rank):
    """Rank 0 has a socket to each other rank: it answers when it has heard of all."""
    if rank:
        ends[0].send(b"x")
        ends[0].recv(1)
        return
    for end in ends:
        end.recv(1)
    for end in ends:
        end.send(b"x")


def train(rank, ends):
    for step in range(1 << 30):
        forward()
        backward(rank)
        all_reduce(ends, rank)
        optimizer_step()
        if step == STEPS_BEFORE:
            print("ready", flush=True)


def launch(count):
    pairs = [socket.socketpair() for _ in range(count - 1)]
    ranks = []
    for rank in range(count):
        own = [pairs[rank - 1][1]] if rank else [pair[0] for pair in pairs]
        numbers = [end.fileno() for end in own]
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, str(count), *map(str, numbers)],
                env={**os.environ, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                pass_fds=numbers,
                preexec_fn=die_with_parent,
            )
        )
    for it in ranks:
        assert it.stdout.readline() == b"ready\n"
    print("ready", *[it.pid for it in ranks], flush=True)
    for it in ranks:
        it.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(int(os.environ["RANK"]), [socket.socket(fileno=int(word)) for word in sys.argv[2:]])
    else:
        die_with_input()
        launch(int(sys.argv[1]))
