"""The request of smoke.sh and the checks it prints, as pure functions."""

import pytest

from gpunode.core.errors import InputError
from gpunode.core.items.smoke import engine_log, parse_checks, smoke_files
from gpunode.core.model import Check, ConfigFile, NodeFacts, Runtime


def test_every_key_becomes_one_file_of_lines() -> None:
    value = {
        "runtimes": ["containerd", "docker"],
        "default_runtime": {"containerd": "runc", "docker": "nvidia"},
        "image": "registry.example:5000/cuda:12.8",
        "gpus": 8,
        "cuda": ["12.8"],
        "toolkit": True,
        "socket": "/run/k3s/containerd/containerd.sock",
        "logs": {"containerd": "journalctl -u k3s"},
    }
    assert smoke_files(value) == {
        "runtimes": b"containerd\ndocker\n",
        "default_containerd": b"runc\n",
        "default_docker": b"nvidia\n",
        "image": b"registry.example:5000/cuda:12.8\n",
        "gpus": b"8\n",
        "cuda": b"12.8\n",
        "toolkit": b"1\n",
        "socket": b"/run/k3s/containerd/containerd.sock\n",
        "log_containerd": b"journalctl -u k3s\n",
    }


@pytest.mark.parametrize(
    "value",
    [
        {"runtimes": ["podman"]},
        {"image": "--privileged"},
        {"cuda": ["12"]},
        {"default_runtime": {"docker": "kata"}},
        {"logs": {"crio": "journalctl -u crio"}},
        {"logs": {"docker": "journalctl -u docker | tail"}},
        {"logs": {"docker": "two\nlines"}},
        {"x": 1},
    ],
)
def test_what_cannot_be_checked_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        smoke_files(value)


RANCHER = "/var/lib/rancher/k3s/agent/containerd/containerd.log"


@pytest.mark.parametrize(
    ("runtime", "log"),
    [
        (Runtime(name="containerd", unit="containerd.service"), ""),
        (Runtime(name="containerd"), ""),
        (Runtime(name="containerd", unit="my-containerd.service"), "journalctl -u my-containerd"),
        (Runtime(name="docker", unit="docker.service"), ""),
        (Runtime(name="docker", unit="snap.docker.dockerd.service"), "journalctl -u snap.docker.dockerd"),
        (Runtime(name="crio", unit="crio.service"), ""),
        (
            Runtime(name="containerd", distribution="k3s", unit="k3s-agent.service"),
            f"{RANCHER} and journalctl -u k3s-agent",
        ),
        (Runtime(name="containerd", distribution="k3s"), RANCHER),
        (
            Runtime(
                name="containerd",
                distribution="rke2",
                unit="rke2-server.service",
                flags=("--data-dir=/data/rke2",),
            ),
            "/data/rke2/agent/containerd/containerd.log and journalctl -u rke2-server",
        ),
        (Runtime(name="containerd", distribution="k0s", unit="k0scontroller.service"), "journalctl -u k0scontroller"),
        (Runtime(name="containerd", distribution="k0s"), "the log of k0s"),
        (
            Runtime(name="containerd", distribution="microk8s", unit="snap.microk8s.daemon-containerd.service"),
            "journalctl -u snap.microk8s.daemon-containerd",
        ),
    ],
)
def test_the_log_of_an_engine_is_reported_where_its_name_does_not_tell_it(runtime: Runtime, log: str) -> None:
    rendered = "/data/rke2/agent/etc/containerd/config.toml"
    facts = NodeFacts(runtimes=(runtime,), files={rendered: ConfigFile(path=rendered, data=b"version = 2\n")})
    assert engine_log(facts, runtime) == log


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
