"""Three processes that compute from and until other times, and say when that was: [[from, until], ...], seconds.

Each wants a CPU from the moment at which its sleep ends, or a little before it says so, where it gets none at once.
"""

import json
import os
import time

COUNT, EACH_S = 3, 0.4


def compute(begin, until, pipe):
    time.sleep(max(0, begin - time.monotonic()))
    awake = time.monotonic()
    while time.monotonic() < until:
        pass
    os.write(pipe, (json.dumps([awake, time.monotonic()]) + "\n").encode())
    os._exit(0)


reader, writer = os.pipe()
start = time.monotonic() + 0.3
for number in range(COUNT):
    if not os.fork():
        compute(start + number * EACH_S, start + (2 * COUNT - number) * EACH_S, writer)
os.close(writer)
with open(reader) as lines:
    print(json.dumps([json.loads(line) for line in lines]), flush=True)
for _ in range(COUNT):
    os.wait()
