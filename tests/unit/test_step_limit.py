"""How long a script of one of Ansible's steps may take."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from gpunode.core.errors import UnreachableError
from gpunode.edge.ansible.step_limit import time_limit
from gpunode.edge.supervise import descendants


def test_what_a_script_waits_for_ends_with_its_time() -> None:
    before = descendants()
    with (
        pytest.raises(UnreachableError, match=r"probe\.sh did not end within 2 s"),
        time_limit("probe.sh", 2, spent=1.8),
    ):
        subprocess.Popen(["sleep", "60"]).wait()
    time.sleep(0.1)
    assert descendants() <= before


def test_the_time_out_of_the_task_itself_goes_on_afterwards() -> None:
    class Outer(Exception):
        pass

    def over(*_: object) -> None:
        raise Outer

    handler = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(UnreachableError), time_limit("probe.sh", 0.1):
            time.sleep(5)
        with pytest.raises(Outer), time_limit("activate.sh", 9):
            time.sleep(5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
