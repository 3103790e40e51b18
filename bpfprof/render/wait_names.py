"""Profile and its work -> what a wait is called where a name has room: that of the lock, the file, the peer."""

from __future__ import annotations

from bpfprof.known.services import object_text
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_text
from bpfprof.query.waits.chains import waker_name
from bpfprof.query.waits.lock_holders import lock_frames
from bpfprof.query.work.table import Work
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import file_names, mark_text, printable, thread_label


class WaitNames:
    """Names of what the spans of a profile waited for. lock: a number of Work.locks, 0: it is none."""

    def __init__(self, profile: Profile, work: Work, options: RenderOptions) -> None:
        self._profile, self._options = profile, options
        self._lock_frames, self._files = lock_frames(work), file_names(profile, options)

    def short(self, reason: int, lock: int) -> str:
        """`waiting: lock #1`."""
        text = mark_text(Frame(FrameKind.WAIT, reason_text(reason)))
        return f"{text} #{lock}" if lock else text

    def taken_in(self, lock: int) -> Frame | None:
        """The line of the user's own code where most waited for it; None where no function is known."""
        place = self._lock_frames[lock]
        frame = self._profile.frames[place] if lock and place >= 0 else None
        return frame if frame and frame.name else None

    def whole(self, reason: int, lock: int) -> str:
        """`waiting: lock #1, taken in audit (djapp.py:21)`."""
        frame = self.taken_in(lock)
        return f"{self.short(reason, lock)}, taken in {self.place(frame)}" if frame else self.short(reason, lock)

    def place(self, frame: Frame) -> str:
        """`audit (djapp.py:21)`."""
        line = "" if self._options.function_only or not frame.line else f":{frame.line}"
        return f"{printable(frame.name) or '[unknown]'} ({self.file(frame)}{line})"

    def file(self, frame: Frame) -> str:
        """`djapp.py`."""
        return self._files.get(frame.file) or printable(frame.file.rsplit("/", 1)[-1]) or "[unknown]"

    def object(self, number: int) -> str:
        """Of what its descriptor was; "" of 0."""
        return printable(object_text(self._profile.objects[number - 1])) if number else ""

    def waker(self, number: int) -> str:
        """`thread worker_3 (5988)`, `timer`; "" of 0."""
        return printable(waker_name(self._profile.wakers[number - 1], self._profile.threads)) if number else ""

    def holder(self, number: int) -> str:
        """`thread worker_3 (5988)`, who held the GIL; "" of 0."""
        return thread_label(self._profile.threads[number - 1]) if number else ""
