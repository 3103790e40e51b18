"""asyncio with many socket pairs: one task asks, one answers, some of them often and some after a pause.

Prints `ready PID`, and one line of JSON at the end. Runs for --seconds, or until standard input closes.
Standard library only; CPython 3.9 and newer.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
import time

counter = [0]


async def answer(connection):
    """Sends back what comes."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_sendall(connection, await loop.sock_recv(connection, 64))


async def ask(connection, pause_s):
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_sendall(connection, b"0123456789")
        await loop.sock_recv(connection, 64)
        counter[0] += 1
        await asyncio.sleep(pause_s)


async def talk(pair_count, seconds):
    tasks = []
    for number in range(pair_count):
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        pause_s = (0.002, 0.005, 0.02)[number % 3]
        tasks += [asyncio.ensure_future(answer(ends[0])), asyncio.ensure_future(ask(ends[1], pause_s))]
    print(f"ready {os.getpid()}", flush=True)
    if seconds is not None:
        await asyncio.sleep(seconds)
    else:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()


def main():
    parser = argparse.ArgumentParser(description="Many socket pairs in one event loop.")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, help="run so long; default: until standard input closes")
    options = parser.parse_args()
    started = time.monotonic()
    asyncio.run(talk(options.pairs, options.seconds))
    print(json.dumps({"messages": counter[0], "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    main()
