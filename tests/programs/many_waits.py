"""Some thousand waits a second, of many kinds, at many places: 40 threads, each through functions chosen at random.

A turn goes through three of six functions, one below the other, then sleeps, takes one of eight locks and sleeps with
it, asks one of eight servers over a socket pair, or gets from a queue. Every function has some waits of each kind, so
there are thousands of stacks. Prints `ready PID`; runs for --seconds, or until standard input closes; then prints
a line of JSON with the threads' voluntary switches a second. Standard library only.
"""

import argparse
import json
import os
import queue
import random
import socket
import sys
import threading
import time

from clocks import name_thread

THREADS, LOCKS, SERVERS, DEPTH = 40, 8, 8, 2
ROUTES = ["accept", "authorize", "load", "merge", "price", "publish"]
SOURCE = """
def {name}(shared, choices, depth):
    if depth:
        return ROUTES[choices.choice(NAMES)](shared, choices, depth - 1)
    kind = choices.random()
    if kind < 0.4:
        time.sleep(shared.pause)
    elif kind < 0.6:
        with choices.choice(shared.locks):
            time.sleep(shared.pause / 4)
    elif kind < 0.8:
        choices.choice(shared.servers).ask()
    else:
        shared.queue.put(choices.choice(NAMES))
        shared.queue.get()
"""


class Server:
    """Answers one byte with one, some time later."""

    def __init__(self, number, pause):
        self.ours, self.theirs = socket.socketpair()
        self.lock, self.pause = threading.Lock(), pause
        threading.Thread(target=self.serve, args=(number,), daemon=True).start()

    def serve(self, number):
        name_thread(f"server-{number}")
        while True:
            self.theirs.recv(1)
            time.sleep(self.pause / 10)
            self.theirs.send(b".")

    def ask(self):
        with self.lock:
            self.ours.send(b".")
            self.ours.recv(1)


class Shared:
    def __init__(self, pause):
        self.pause = pause
        self.locks = [threading.Lock() for _ in range(LOCKS)]
        self.servers = [Server(number, pause) for number in range(SERVERS)]
        self.queue = queue.Queue()


def routes():
    found = {"time": time}
    for name in ROUTES:
        code = "\n" * 100 * ROUTES.index(name) + SOURCE.format(name=name)
        exec(compile(code, f"{name}.py", "exec"), found)
    found["ROUTES"] = {name: found[name] for name in ROUTES}
    found["NAMES"] = ROUTES
    return found["ROUTES"]


def work(number, shared, functions):
    name_thread(f"worker-{number}")
    choices = random.Random(number)
    while True:
        functions[choices.choice(ROUTES)](shared, choices, DEPTH)


def switches():
    count = 0
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/status") as status:
            count += sum(int(line.split()[1]) for line in status if line.startswith("voluntary"))
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--pause", type=float, default=0.016, help="seconds of a sleep")
    options = parser.parse_args()
    shared, functions = Shared(options.pause), routes()
    for number in range(THREADS):
        threading.Thread(target=work, args=(number, shared, functions), daemon=True).start()
    began, before = time.monotonic(), switches()
    print("ready", os.getpid(), flush=True)
    if options.seconds is not None:
        time.sleep(options.seconds)
    else:
        sys.stdin.read()
    print(json.dumps({"switches_a_second": (switches() - before) / (time.monotonic() - began)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
