"""Call frame information of single functions: addresses in a large file in, the rows of the functions there out.

.eh_frame_hdr says where each function begins and where its FDE is, so that nobody has to read them all: libtorch_cpu
has 342,000, of which a training loop leads through 700.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.elf.cfi.programs import Programs
from bpfprof.elf.cfi.records import Lost
from bpfprof.elf.cfi.rules import CallFrames
from bpfprof.elf.cfi.sections import FrameSection, code_range, frame_address, functions_by_start, read_eh_frame
from bpfprof.elf.cfi.tables import frames_of
from bpfprof.elf.image import EM_X86_64, ElfImage
from bpfprof.elf.leb128 import Ints

_ROW_LIMIT = 1 << 20  # of the functions that are asked for at a time
_SHORTEST_RECORD_BYTES = 8


@dataclass(frozen=True)
class FrameLookup:
    """starts: ELF addresses of functions, ascending; offsets: of the FDE of each in the section. code: the first and
    the last address of executable segments."""

    section: FrameSection
    starts: Ints
    offsets: Ints
    code: tuple[int, int]
    programs: Programs = field(default_factory=Programs)  # which remember what instructions do

    @classmethod
    def of(cls, image: ElfImage) -> FrameLookup | None:
        """None of a file without a sound table, or with call frame information elsewhere, too. Raises ElfError."""
        if image.machine != EM_X86_64 or image.section(".debug_frame") is not None:
            return None
        section, header = read_eh_frame(image)
        table = functions_by_start(header, section.address) if header is not None else None
        if header is None or table is None or frame_address(header) != section.address:
            return None
        starts, offsets = table
        low, high = code_range(image)
        is_sound = offsets.min() >= 0 and offsets.max() <= len(section.data) - _SHORTEST_RECORD_BYTES
        if not is_sound or starts[0] < low or starts[-1] >= high:
            return None
        return cls(section, starts, offsets, (low, high))

    def frames(self, addresses: Ints) -> CallFrames:
        """Of the last functions that begin at or before these addresses, which may end before them, too."""
        places = np.searchsorted(self.starts, addresses, side="right") - 1
        records = np.unique(self.offsets[places[places >= 0]])
        lost: Lost = Counter()
        self.programs.forget_rows()
        return frames_of(self.section, records, lost, self.code, _ROW_LIMIT, self.programs)
