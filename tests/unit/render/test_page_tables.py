"""What the page says in tables."""

from __future__ import annotations

import pytest

from bpfprof.model.profile import Quality
from bpfprof.render.page_tables import _quality
from tests.unit.render.profiles import MS
from tests.unit.render.test_quality import profile_off_by

WHOLE = Quality(100, 0, {}, {}, 0, 0)


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
