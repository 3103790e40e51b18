"""What the page says in tables."""

from __future__ import annotations

import pytest

from bpfprof.model.profile import Quality
from bpfprof.model.spans import SpanFlag
from bpfprof.query.work.table import work_of
from bpfprof.render.page_tables import _quality, page_groups
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, python, wait
from tests.unit.render.test_quality import profile_off_by

WHOLE = Quality(100, 0, {}, {}, 0, 0)


def test_groups_that_worked_most_come_first() -> None:
    made = ProfileBuilder()
    idle, little = made.thread(1, "idle"), made.thread(2, "little")
    made.wait(idle, 900 * MS, [python("get"), wait("lock")], flags=SpanFlag.IDLE)
    made.spend(little, ON_CPU, 100 * MS, [python("work")])
    for number in range(70):
        made.spend(
            made.thread(3 + number, f"busy{chr(97 + number % 8)}{chr(97 + number // 8)}"),
            ON_CPU,
            200 * MS,
            [python("work")],
        )
    profile = made.build()
    groups = page_groups(profile, work_of(profile), "none")
    assert groups.names[0] == "busyaa" and groups.names[-1] == "others" and len(groups.names) == 64
    assert groups.group_of[:3].tolist() == [63, 63, 0]


@pytest.mark.parametrize(
    ("lost_ms", "quality", "level", "word"),
    [
        (0, WHOLE, "whole", "whole"),
        (10, WHOLE, "whole", "whole"),
        (30, WHOLE, "part", "98.5% accounted"),
        (0, Quality(97, 0, {"too deep": 3}, {}, 0, 0), "part", "97% of stacks complete"),
        (0, Quality(98, 0, {"too deep": 2}, {}, 0, 0), "whole", "whole"),
        (0, Quality(97, 0, {"too deep": 3}, {"ring buffer full": 4}, 0, 0), "part", "4 lost"),
        (30, Quality(97, 0, {"too deep": 3}, {}, 0, 0, unfinished="killed"), "unfinished", "unfinished"),
    ],
)
def test_the_badge_has_the_worst_of_what_is_missing(lost_ms: int, quality: Quality, level: str, word: str) -> None:
    found = _quality(profile_off_by(lost_ms * MS, quality))
    assert (found["level"], found["word"]) == (level, word)
