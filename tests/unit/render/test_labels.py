from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.code.origins import import_path
from bpfprof.query.work.places import file_text
from bpfprof.render.labels import frame_label, printable, short_file_names
from tests.unit.render.profiles import native, python

FILES = {"/srv/app/train.py": "train.py", "": "[unknown]"}


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (python("Trainer.step", line=41), "Trainer.step (train.py:41)"),
        (python("Trainer.step"), "Trainer.step (train.py)"),
        (python("", ""), "[unknown] ([unknown])"),
        (native("cblas_dgemm", "/usr/lib/libopenblas.so"), "cblas_dgemm (libopenblas.so)"),
        (native("", "/usr/lib/libopenblas.so", 0x1F40), "libopenblas.so+0x1f40"),
        (native("", "", 0x7F00), "[unknown]+0x7f00"),
        (native("memcpy", ""), "memcpy ([unknown])"),
        (Frame(FrameKind.INLINED, "dot<float>", "/a/k.so"), "dot<float> (k.so)_[i]"),
        (Frame(FrameKind.KERNEL, "futex_wait"), "futex_wait_[k]"),
        (Frame(FrameKind.WAIT, "syscall ioctl"), "[off-cpu: syscall ioctl]"),
        (Frame(FrameKind.RUNQUEUE), "[runqueue]"),
        (Frame(FrameKind.TRUNCATED, "too deep"), "[truncated: too deep]"),
        (Frame(FrameKind.NOT_SAMPLED), "[not sampled]"),
        (Frame(FrameKind.SHORT_WAITS), "[short waits]"),
        (Frame(FrameKind.WOKEN_BY, "thread a;b (7)"), "[woken by thread a;b (7)]"),
    ],
)
def test_text_of_each_kind(frame: Frame, text: str) -> None:
    assert frame_label(frame, FILES, function_only=False) == text


@pytest.mark.parametrize("kind", FrameKind)
def test_every_kind_has_a_text_even_without_a_name(kind: FrameKind) -> None:
    assert frame_label(Frame(kind), FILES, function_only=False)


def test_function_only_drops_the_line() -> None:
    assert frame_label(python("f", line=41), FILES, function_only=True) == "f (train.py)"


LINED = Frame(FrameKind.NATIVE, "kernel::run()", "/a/libk.so", 40, source="/src/deep/run.cc")


@pytest.mark.parametrize(
    ("frame", "with_line", "function_only"),
    [
        (LINED, "kernel::run() (libk.so run.cc:40)", "kernel::run() (libk.so)"),
        (
            replace(LINED, kind=FrameKind.INLINED),
            "kernel::run() (libk.so run.cc:40)_[i]",
            "kernel::run() (libk.so)_[i]",
        ),
        (replace(LINED, line=0), "kernel::run() (libk.so)", "kernel::run() (libk.so)"),
        (replace(LINED, source="run.cc"), "kernel::run() (libk.so run.cc:40)", "kernel::run() (libk.so)"),
        (replace(LINED, name="", offset=0x40), "libk.so+0x40", "libk.so+0x40"),
        (
            replace(LINED, file="", source="/src/a;b.cc"),
            "kernel::run() ([unknown] a;b.cc:40)",
            "kernel::run() ([unknown])",
        ),
    ],
)
def test_a_native_frame_with_a_line(frame: Frame, with_line: str, function_only: str) -> None:
    assert frame_label(frame, FILES, function_only=False) == with_line
    assert frame_label(frame, FILES, function_only=True) == function_only


def test_lines_of_one_native_function_become_one_frame() -> None:
    """With -F they are added up: frames to be merged have the same text."""
    frames = [replace(LINED, line=line) for line in (40, 41, 0)]
    assert len({frame_label(frame, FILES, function_only=True) for frame in frames}) == 1
    assert len({frame_label(frame, FILES, function_only=False) for frame in frames}) == 3


def test_file_names_are_the_shortest_tails_that_differ() -> None:
    assert short_file_names(["/a/x/run.py", "/a/y/run.py", "/b/y/run.py", "/a/one.py", "run.py", "<string>"]) == {
        "/a/x/run.py": "x/run.py",
        "/a/y/run.py": "a/y/run.py",
        "/b/y/run.py": "b/y/run.py",
        "/a/one.py": "one.py",
        "run.py": "run.py",
        "<string>": "<string>",
    }


@pytest.mark.parametrize("paths", [["/run.py", "run.py"], ["", "/"], ["a/", "b/"], ["<a/b>", "<c/b>"]])
def test_odd_paths_stay_apart(paths: list[str]) -> None:
    assert len(set(short_file_names(paths).values())) == len(paths)


@pytest.mark.parametrize("char", [*map(chr, range(32)), "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\udc80"])
def test_no_character_breaks_a_line(char: str) -> None:
    cleaned = printable(f"a{char}b")
    assert len(cleaned.splitlines()) == 1
    assert cleaned.isprintable()
    cleaned.encode("utf-8")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/usr/lib/python3/dist-packages/flask/app.py", "flask/app.py"),
        ("/home/me/.venv/lib/python3.12/site-packages/django/template/base.py", "django/template/base.py"),
        ("/opt/venv/lib64/python3.13t/site-packages/six.py", "six.py"),
        ("/usr/lib/python3.11/asyncio/base_events.py", "asyncio/base_events.py"),
        ("/usr/local/lib/python3.8/threading.py", "threading.py"),
        ("/usr/lib/python311.zip/json/decoder.py", "json/decoder.py"),
        ("/srv/shop/serve/__init__.py", "serve/__init__.py"),
        ("/srv/shop/train.py", "train.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("", ""),
    ],
)
def test_a_file_is_known_by_what_is_imported(path: str, shown: str) -> None:
    assert import_path(path) == shown and short_file_names([path]) == {path: shown}
    frame = Frame(FrameKind.PYTHON, "run", path, 7)
    assert not path or file_text(frame) == f"{shown}:7"


def test_one_package_in_two_places_stays_apart() -> None:
    paths = [f"/srv/{name}/lib/python3.12/site-packages/flask/app.py" for name in ("shop", "mail")]
    shown = short_file_names([*paths, "/srv/app.py"])
    assert len({*shown.values()}) == 3 and all(shown[path].endswith("/site-packages/flask/app.py") for path in paths)
