"""asyncio with more to do than it can: busy_loop.py computes TASKS | threads TASKS THREADS.

`computes`: one task computes a quarter of a second at a time, the others could go on. `threads`: each task has an
executor with so few threads sleep. Prints `ready PID`; ends with its standard input. Standard library only.
"""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def crunch():
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end:
        sum(range(1000))


def query():
    time.sleep(0.7)


async def computes():
    while True:
        crunch()
        await asyncio.sleep(0.001)


async def naps():
    while True:
        await asyncio.sleep(0.001)


async def asks(executor):
    while True:
        await asyncio.get_running_loop().run_in_executor(executor, query)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


async def main():
    kind, tasks, *threads = sys.argv[1:]
    if kind == "computes":
        coroutines = [computes(), *(naps() for _ in range(int(tasks)))]
    else:
        executor = ThreadPoolExecutor(int(threads[0]))
        coroutines = [asks(executor) for _ in range(int(tasks))]
    print("ready", os.getpid(), flush=True)
    await asyncio.gather(*coroutines)


threading.Thread(target=end_with_input, daemon=True).start()
asyncio.run(main())
