"""Two threads that take two locks; prints `ready PID TID TID`.

lock_orders.py deadlock: each has one lock and waits for the other's. cycle: in turn, never at the same time, the first
takes FIRST and then SECOND, the other SECOND and then FIRST; two more threads use one lock each. same: both of the two
take FIRST and then SECOND.
"""

import os
import sys
import threading
import time

FIRST, SECOND = threading.Lock(), threading.Lock()
TIDS = {}
TURN = threading.Barrier(2)


def take_both(name, first, second, is_deadlock):
    TIDS[name] = threading.get_native_id()
    with first:
        TURN.wait()
        with second:
            assert not is_deadlock


def take_in_turn(name, first, second, my_turn, next_turn):
    TIDS[name] = threading.get_native_id()
    while True:
        my_turn.wait()
        my_turn.clear()
        with first:
            time.sleep(0.01)
            with second:
                time.sleep(0.002)
        next_turn.set()


def use(lock, hold_s):
    while True:
        with lock:
            time.sleep(hold_s)
        time.sleep(0.001)


def main(kind):
    orders = (FIRST, SECOND), ((FIRST, SECOND) if kind == "same" else (SECOND, FIRST))
    turns = threading.Event(), threading.Event()
    turns[0].set()
    for number, order in enumerate(orders):
        if kind == "deadlock":
            target, arguments = take_both, (number, *order, True)
        else:
            target, arguments = take_in_turn, (number, *order, turns[number], turns[1 - number])
        threading.Thread(target=target, args=arguments, daemon=True, name=f"taker-{number}").start()
    if kind != "deadlock":
        for lock in (FIRST, SECOND):
            threading.Thread(target=use, args=(lock, 0.004), daemon=True).start()
    while len(TIDS) < 2:
        time.sleep(0.001)
    time.sleep(0.2)
    print("ready", os.getpid(), TIDS[0], TIDS[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
