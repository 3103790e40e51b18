"""Where nothing can be recorded, and what is said."""

from __future__ import annotations

import pytest

from bpfprof.errors import UnsupportedError
from bpfprof.kernel.checks import check_namespace
from bpfprof.proc import host


@pytest.mark.parametrize(
    ("name", "said"), [("is_in_pid_namespace", "pid namespace"), ("has_other_clocks", "time namespace")]
)
def test_pids_and_times_that_are_not_the_kernels(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("is_in_pid_namespace", "has_other_clocks"):
        monkeypatch.setattr(host, each, lambda each=each: each == name)
    with pytest.raises(UnsupportedError, match=said) as caught:
        check_namespace()
    assert caught.value.exit_code == 3 and "on the host" in str(caught.value.hint)
