from dataclasses import replace
from typing import Any

import pytest

from bpfprof.model.profile import Quality
from bpfprof.render.columns import COLUMNS, duration_text, percent_text, seconds_text
from bpfprof.render.quality import file_quality, quality_line
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, empty_profile, hostile_profile, python


def profile_off_by(lost_ns: int, quality: Quality):
    made = ProfileBuilder(quality=quality)
    made.spend(made.thread(1, "fine"), ON_CPU, 1_000 * MS, [python("f")])
    thread = made.thread(2, "gappy")
    made.spend(thread, ON_CPU, 1_000 * MS, [python("f")])
    made.threads[thread] = replace(made.threads[thread], last_ns=1_000 * MS + lost_ns)
    return made.build()


def test_all_is_well() -> None:
    quality = Quality(10, 0, {}, {}, 5 * MS, 1_000 * MS)
    assert quality_line(profile_off_by(0, quality)) == (
        "quality: 100.00% of 2.000 s wall time accounted for, exact in every thread; "
        "stacks 100.00% complete (10 of 10), none truncated; none lost; bpfprof itself used 0.50% of one core"
    )


def test_what_is_well_is_one_short_line_of_several_recordings() -> None:
    quality = Quality(96, 5, {"too deep": 4}, {}, 5 * MS, 1_000 * MS, short_count=2, short_ns=19 * MS)
    quality = replace(quality, untold_count=5, unsampled_count=5, without_rules_count=5)
    profile = profile_off_by(-MS, quality)
    text = "100.05% of 1.999 s accounted; stacks 96.00%; none lost; own CPU <1%"
    assert file_quality(profile, "before ", "a.bpfprof", True) == f"before a.bpfprof: {text}"
    cut = file_quality(profile, "before ", f"/{'long/' * 20}a.bpfprof", True)
    assert cut.startswith("before …") and cut.endswith(f"/long/a.bpfprof: {text}") and len(cut) == COLUMNS
    assert file_quality(profile, "", "a", False) == f"a: {quality_line(profile)}"


@pytest.mark.parametrize(
    ("lost_ns", "wrong", "said"),
    [
        (30 * MS, {}, "98.52% of 2.030 s wall time accounted for, worst thread gappy (2) -30.00 ms"),
        (0, {"complete_count": 94}, "stacks 94.00% complete (94 of 100), 6 truncated (too deep 6); none lost"),
        (0, {"python_only_count": 6}, "stacks 99.00% complete (99 of 100, 6 Python-only), 1 truncated"),
        (0, {"without_rules_count": 6}, "(99 of 100, 6 through code without unwind rules), 1 truncated"),
        (0, {"unsampled_count": 6}, "; stacks of 6 waits estimated from others of their thread; "),
        (0, {"untold_count": 6}, "100.00% of 2.000 s wall time accounted for, 6 switches not told by the kernel; "),
        (0, {"short_count": 2, "short_ns": 21 * MS}, "2 waits: time counted, no stack (1.1% of wall time)"),
        (0, {"lost_counts": {"ring buffer full": 3}}, "; 3 samples lost (ring buffer full 3); "),
        (0, {"problem_counts": {"files beyond the unwind tables": 1}}, "; native code: files beyond the unwind tab"),
        (0, {"missed_tasks": {"too many": 2}}, "; asyncio tasks not seen: too many 2; "),
        (0, {"unfinished": "killed"}, "a: UNFINISHED RECORDING (killed); "),
    ],
)
def test_what_is_not_well_is_said_in_full(lost_ns: int, wrong: dict[str, Any], said: str) -> None:
    count = wrong.get("complete_count", 99)
    quality = replace(Quality(99, 0, {"too deep": 100 - count}, {}, 5 * MS, 1_000 * MS), **wrong)
    assert said in file_quality(profile_off_by(lost_ns, quality), "", "a", True)


@pytest.mark.parametrize(
    ("off_ms", "said"),
    [
        (
            [-2_000, *[0] * 99],
            "99.00% of 200.0 s wall time accounted for, worst thread worker (1) -2.000 s (100.00% of",
        ),
        ([-1_200, 1_200, *[0] * 98], "100.00% of 200.0 s wall time accounted for, worst thread worker (1) -1.200 s"),
        ([-19, 21, *[0] * 98], "worst thread worker (2) +21.00 ms (1.05% of its wall time)"),
        ([*[-18] * 50, *[18] * 50], "100.00% of 200.0 s accounted; stacks 100.00%; "),
        ([*[-21] * 50, *[21] * 50], "100.00% of 200.0 s wall time accounted for, worst "),
    ],
)
def test_what_one_thread_lacks_is_not_hidden_by_the_others(off_ms: list[int], said: str) -> None:
    made = ProfileBuilder(quality=Quality(10, 0, {}, {}, 5 * MS, 1_000 * MS))
    for number, off in enumerate(off_ms, 1):
        thread = made.thread(number, "worker")
        made.spend(thread, ON_CPU, (2_000 + off) * MS, [python("f")])
        made.threads[thread] = replace(made.threads[thread], last_ns=2_000 * MS)
    assert said in file_quality(made.build(), "", "a", True)


@pytest.mark.parametrize(("count", "is_short"), [(10, True), (200, False)])
def test_threads_that_lived_short_count_together(count: int, is_short: bool) -> None:
    made = ProfileBuilder(quality=Quality(10, 0, {}, {}, 5 * MS, 1_000 * MS))
    made.spend(made.thread(1), ON_CPU, 100_000 * MS, [python("f")])
    for number in range(count):
        thread = made.thread(2 + number)
        made.spend(thread, ON_CPU, (20, 60)[number % 2] * MS, [python("f")])
        made.threads[thread] = replace(made.threads[thread], last_ns=40 * MS)
    assert ("accounted; " in file_quality(made.build(), "", "a", True)) == is_short


def test_what_the_kernel_did_not_tell_is_said_in_place_of_exact() -> None:
    line = quality_line(profile_off_by(0, Quality(untold_count=1)))
    assert "wall time accounted for, 1 switch not told by the kernel; " in line and "exact" not in line


def test_everything_went_wrong() -> None:
    quality = Quality(
        90, 7, {"too deep": 2, "no unwind row": 8}, {"ring buffer full": 3, "rate limit": 0}, 0, 0, "killed"
    )
    assert quality_line(profile_off_by(2 * MS, quality)) == (
        "quality: UNFINISHED RECORDING (killed); 99.90% of 2.002 s wall time accounted for, "
        "worst thread gappy (2) -2.00 ms (0.20% of its wall time); stacks 90.00% complete (90 of 100, 7 Python-only), "
        "10 truncated (no unwind row 8, too deep 2); 3 samples lost (ring buffer full 3); "
        "bpfprof itself used 0 ns of CPU"
    )


def test_a_recording_without_an_end_does_not_say_that_nothing_was_lost() -> None:
    assert "; what was lost is not known; " in quality_line(profile_off_by(0, Quality(unfinished="killed")))


def test_a_small_loss_never_reads_as_none() -> None:
    assert ">99.99% of" in quality_line(profile_off_by(1, Quality()))


def test_always_one_printable_line() -> None:
    for profile in (empty_profile(), hostile_profile()):
        assert quality_line(profile).isprintable()


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.5 us"),
        (999_940, "999.9 us"),
        (999_960, "1.00 ms"),
        (12_345_678, "12.35 ms"),
        (123_456_789, "123.5 ms"),
        (999_960_000, "1.000 s"),
        (99_999 * MS, "99.999 s"),
        (123_456 * MS, "123.5 s"),
    ],
)
def test_duration(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (1, 3, "33.33%"),
        (0, 5, "0.00%"),
        (5, 5, "100.00%"),
        (999_999, 1_000_000, ">99.99%"),
        (1_000_001, 1_000_000, "<100.01%"),
        (1, 1_000_000, "<0.01%"),
        (1, 0, "-"),
    ],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent_text(part, whole) == text


@pytest.mark.parametrize("seconds", [0, 1, 999.9994, 999.9996, 99_999.94, 99_999.96, 9_999_999])
def test_seconds_fit_their_column(seconds: float) -> None:
    assert len(seconds_text(int(seconds * 1e9))) <= 7


def test_what_native_stacks_may_lack_is_said() -> None:
    problems = {"file without unwind table: it has no call frame information": 2, "files beyond the unwind tables": 0}
    line = quality_line(profile_off_by(0, Quality(problem_counts=problems)))
    assert "; native code: file without unwind table: it has no call frame information 2; " in line
    assert "native code" not in quality_line(profile_off_by(0, Quality()))
