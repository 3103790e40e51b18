"""An asyncio program that computes all the time: pairs of tasks hand items on through queues, others sleep meanwhile.

Prints `ready PID`, then for each line on standard input one line of JSON: {"turns", "cpu_ns"} so far. A turn is an item
that was handed on, and what is computed for it. Ends when its input does. CPython 3.9 and newer.
"""

import asyncio
import json
import os
import sys
import threading
import time

PAIRS, SLEEPERS, WORK = 20, 14, 200
turns = 0


async def produce(queue):
    while True:
        await queue.put(sum(range(WORK)))
        await asyncio.sleep(0)


async def consume(queue):
    global turns
    while True:
        await queue.get()
        turns += 1


async def nap():
    while True:
        await asyncio.sleep(0.05)


def answer():
    for _ in sys.stdin:
        print(json.dumps({"turns": turns, "cpu_ns": time.process_time_ns()}), flush=True)
    os._exit(0)


async def main():
    queues = [asyncio.Queue(maxsize=2) for _ in range(PAIRS)]
    tasks = [coroutine(queue) for queue in queues for coroutine in (produce, consume)]
    threading.Thread(target=answer, daemon=True).start()
    print("ready", os.getpid(), flush=True)
    await asyncio.gather(*tasks, *(nap() for _ in range(SLEEPERS)))


asyncio.run(main())
