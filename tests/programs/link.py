"""A network namespace behind a link on which each packet takes so many seconds: link.py SECONDS.

Prints "ready", the interface of the link here, the name of the namespace, and the interface there; goes, with them,
when its standard input ends. As root; needs iproute2. Packets go through two tun devices, which this process has: no
kernel needs netem for it.
"""

import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>
PACKET = 1 << 16


def end(number, namespace):
    """(descriptor of the device, its name)"""
    device, within = f"link{number}", ["ip", "-n", namespace] if namespace else ["ip"]
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    if namespace:
        subprocess.run(["ip", "link", "set", device, "netns", namespace], check=True)
    subprocess.run([*within, "addr", "add", f"10.99.0.{number}/24", "dev", device], check=True)
    subprocess.run([*within, "link", "set", device, "up"], check=True)
    return fd, device


def main():
    delay_s, namespace = float(sys.argv[1]), f"bpfprof-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
        (here, near), (there, far) = end(1, ""), end(2, namespace)
        print("ready", near, namespace, far, flush=True)
        carry(here, there, delay_s)
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=False)


def carry(here, there, delay_s):
    under_way, count = [], 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, fd, packet = heapq.heappop(under_way)
            os.write(fd, packet)
        rest = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        for fd in select.select([here, there, 0], [], [], rest)[0]:
            if fd == 0:
                return
            try:
                while True:
                    packet = os.read(fd, PACKET)
                    count += 1
                    heapq.heappush(
                        under_way, (time.monotonic() + delay_s, count, there if fd == here else here, packet)
                    )
            except BlockingIOError:
                pass


if __name__ == "__main__":
    main()
