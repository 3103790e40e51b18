"""Four threads that call into C extensions and back, from stacks of different depth."""

import json
import re
import sys
import threading
import zlib

sys.setswitchinterval(1e-4)


def down(depth, call):
    return down(depth - 1, call) if depth else call()


text = json.dumps({str(n): [n, str(n), n / 3] for n in range(50)})
calls = [
    lambda: json.loads(text),
    lambda: re.sub(r"(\d)\w*", lambda match: match[1], text),
    lambda: sorted(text),
    lambda: zlib.crc32(text.encode() * 50),
    lambda: sum(n * n for n in range(500)),
    lambda: "".join(map(str, range(99))),
]


def run(number):
    while True:
        for call in calls:
            down(number * 3, call)


for number in range(3):
    threading.Thread(target=run, args=(number,), daemon=True).start()
print("ready", flush=True)
run(4)
