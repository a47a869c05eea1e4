"""The request of smoke.sh and the checks it prints, as pure functions."""

import pytest

from gpunode.core.errors import InputError
from gpunode.core.model import Check
from gpunode.core.requests_smoke import parse_checks, smoke_files


def test_every_key_becomes_one_file_of_lines() -> None:
    value = {
        "runtimes": ["containerd", "docker"],
        "default_runtime": {"containerd": "runc", "docker": "nvidia"},
        "image": "registry.example:5000/cuda:12.8",
        "gpus": 8,
        "cuda": ["12.8"],
        "toolkit": True,
    }
    assert smoke_files(value) == {
        "runtimes": b"containerd\ndocker\n",
        "default_containerd": b"runc\n",
        "default_docker": b"nvidia\n",
        "image": b"registry.example:5000/cuda:12.8\n",
        "gpus": b"8\n",
        "cuda": b"12.8\n",
        "toolkit": b"1\n",
    }


@pytest.mark.parametrize(
    "value",
    [
        {"runtimes": ["podman"]},
        {"image": "--privileged"},
        {"cuda": ["12"]},
        {"default_runtime": {"docker": "kata"}},
        {"x": 1},
    ],
)
def test_what_cannot_be_checked_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        smoke_files(value)


def test_check_lines_become_checks() -> None:
    text = (
        "gpunode\tcheck\tdriver.smi|passed|sees 8|\n"
        "gpunode\tcheck\tdocker.default|failed|took runc|provision\n"
        "gpunode\tstatus\tunchanged\ngpunode\tmessage\tmade\n"
    )
    assert parse_checks(text, 0) == (
        Check(id="driver.smi", status="passed", message="sees 8"),
        Check(id="docker.default", status="failed", message="took runc", fix="provision"),
    )


def test_a_script_that_was_killed_is_a_failed_check() -> None:
    checks = parse_checks("gpunode\tcheck\tdriver.smi|passed|sees 8|\n", 137)
    assert [(c.id, c.status) for c in checks] == [("driver.smi", "passed"), ("smoke.ran", "failed")]


def test_an_unknown_status_counts_as_failed() -> None:
    text = "gpunode\tcheck\tx|fine|all well|\ngpunode\tstatus\tunchanged\n"
    assert parse_checks(text, 0)[0].status == "failed"
