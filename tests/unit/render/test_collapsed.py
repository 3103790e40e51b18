from collections import Counter

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.render.formats import RenderOptions
from tests.unit.render.profiles import (
    OFF_CPU,
    ON_CPU,
    ProfileBuilder,
    collapsed_text,
    hostile_profile,
    python,
    training_profile,
    wait,
)


def parse(text: str) -> Counter[str]:
    """Stack -> weight; every line has to be a stack of at least a process and a thread, a space and an integer."""
    stacks: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, weight = line.rpartition(" ")
        process, thread, *_ = stack.split(";")
        assert process.startswith("process ")
        assert thread.startswith("thread ")
        stacks[stack] += int(weight)
    return stacks


def test_weights_of_a_thread_add_up_to_its_rounded_time() -> None:
    made = ProfileBuilder()
    for tid in range(20):
        thread = made.thread(tid)
        for index in range(tid * 7):
            made.spend(thread, ON_CPU, 333 + index * 61, [python(f"f{index % 5}", line=index)])
    stacks = parse(collapsed_text(made.build(), RenderOptions()))
    for who in made.threads:
        total = sum(weight for stack, weight in stacks.items() if f"thread python ({who.tid})" in stack)
        assert total == (who.accounted_ns + 500) // 1000


def test_stacks_too_short_for_a_microsecond_are_left_out_but_not_lost() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for name in "abcdef":
        made.spend(thread, ON_CPU, 400, [python(name)])
    stacks = parse(collapsed_text(made.build(), RenderOptions()))
    assert all(stacks.values())
    assert sum(stacks.values()) == 2


def test_same_text_is_one_line() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 2_000, [python("f", line=1)])
    made.spend(thread, ON_CPU, 3_000, [python("f", line=2)])
    assert collapsed_text(made.build(), RenderOptions(function_only=True)) == (
        "process python (100);thread python (1);f (train.py) 5\n"
    )
    assert len(parse(collapsed_text(made.build(), RenderOptions()))) == 2


def test_what_joins_frames_is_in_no_name() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1), ON_CPU, 5_000, [Frame(FrameKind.PYTHON, "f;g", "/a;b.py")])
    assert collapsed_text(made.build(), RenderOptions()) == "process python (100);thread python (1);f:g (a:b.py) 5\n"


def test_a_stack_without_frames_is_its_thread() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1), ON_CPU, 5_000, [])
    assert collapsed_text(made.build(), RenderOptions()) == "process python (100);thread python (1) 5\n"


def test_marks_stand_where_the_contract_says() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1), OFF_CPU, 9_000, [Frame(FrameKind.TRUNCATED, "too deep"), python("f"), wait("gil")])
    line = "process python (100);thread python (1);[truncated: too deep];f (train.py);[off-cpu: gil] 9\n"
    assert collapsed_text(made.build(), RenderOptions()) == line


def test_hostile_names_do_not_add_lines_or_frames() -> None:
    stacks = parse(collapsed_text(hostile_profile(), RenderOptions()))
    assert sorted(len(stack.split(";")) for stack in stacks) == [7, 7, 7, 7]


def test_full_file_names() -> None:
    text = collapsed_text(training_profile(), RenderOptions(full_filenames=True))
    assert "Trainer.step (/srv/app/model.py:17)" in text
