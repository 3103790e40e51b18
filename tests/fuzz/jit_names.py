"""What a process writes of the code that it makes: perf maps and jitdumps."""

from __future__ import annotations

import os
import random
import struct

from bpfprof.names.jitdump import JitDump
from bpfprof.names.perf_map import parse_perf_map
from tests.fuzz.engine import Fuzzer

_JITDUMP = b"DTiJ"


class JitNames(Fuzzer):
    """A jitdump by its beginning, else a perf map."""

    name = "jit-names"

    def seeds(self) -> list[bytes]:
        lines = [f"{0x7F0000000000 + 64 * number:x} {48:x} function {number}\n" for number in range(50)]
        header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 7, 0, 0)
        records = []
        for number in range(30):
            body = (
                struct.pack("<IIQQQQ", 7, 7, 0x1000 * number, 0x1000 * number, 64, number) + b"function\0" + bytes(64)
            )
            records.append(struct.pack("<IIQ", 0, 16 + len(body), number) + body)
            records.append(
                struct.pack("<IIQIIQQQQQ", 1, 72, number, 7, 7, 0, 0x1000 * number, 0x9000 * number, 64, number)
            )
        return ["".join(lines).encode(), b"\n \n0 0 \nffffffffffffffff 1 x\n1 2\n", header + b"".join(records)]

    def read(self, data: bytes, rng: random.Random) -> object:
        if data[:4] == _JITDUMP:
            fd = os.memfd_create("jitdump")
            try:
                os.write(fd, data)
                dump = JitDump(fd)
                dump.read()
                names = [dump.name(int(row["name_at"])) for row in dump.codes[:50]]
                assert all(len(name) <= 4096 for name in names)
                return dump.problem, len(dump.codes)
            finally:
                os.close(fd)
        table = parse_perf_map(data)
        assert (table.starts <= table.ends).all() and (table.starts[1:] > table.starts[:-1]).all()
        found = table.find(table.starts[:50])
        return len(table), len({len(name) for name in table.names(found)})
