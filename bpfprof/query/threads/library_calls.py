"""A profile -> calls of libraries that were counted, by function: how many, how long, how much they moved."""

from __future__ import annotations

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.calls import DIRECTIONS, CallFlag, length_at
from bpfprof.model.grouping import grouped
from bpfprof.model.profile import Profile


@dataclass(frozen=True)
class CalledRow:
    """All calls of a function, of one direction if it copies. `median_ns`, `p99_ns`: within 23%; 0: not known.

    is_inside: they were made by another call that is counted. is_open: they had not returned when the recording ended.
    """

    function: str
    direction: str
    is_inside: bool
    is_open: bool
    count: int
    total_ns: int
    max_ns: int
    median_ns: int
    p99_ns: int
    byte_count: int
    threads: tuple[int, ...]  # places in Profile.threads

    @property
    def name(self) -> str:
        """`cudaMemcpy HtoD`."""
        return f"{self.function} {self.direction}".rstrip()


def library_calls(profile: Profile) -> list[CalledRow]:
    """Most time first; those that were made by others after all of them."""
    rows = profile.calls
    if not len(rows):
        return []
    order, begin = grouped(rows[name] for name in ("function", "direction", "flags"))
    found = []
    for places in np.split(order, begin[1:]):
        of_group = rows[places]
        row, max_ns = of_group[0], int(of_group["max_ns"].max())
        lengths, direction = of_group["lengths"].sum(axis=0, dtype=np.float64), int(row["direction"])
        made = CalledRow(
            profile.call_names[int(row["function"])],
            DIRECTIONS[direction],
            bool(row["flags"] & CallFlag.INSIDE),
            bool(row["flags"] & CallFlag.OPEN),
            int(of_group["count"].sum()),
            int(of_group["total_ns"].sum()),
            max_ns,
            length_at(lengths, 0.5, max_ns),
            length_at(lengths, 0.99, max_ns),
            int(of_group["bytes"].sum()),
            tuple(sorted(of_group["thread"].tolist())),
        )
        found.append(made)
    return sorted(found, key=lambda each: (each.is_inside, -each.total_ns, each.name, each.is_open))
