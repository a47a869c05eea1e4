"""The kernel settings of Kubernetes: which file wins at boot, what is in force, and activate.sh that sets them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.items.activation import activate_request
from gpunode.core.items.sysctl import CONF, WANTED, boot_warnings, overrules, sysctl_checks
from gpunode.core.model import ConfigFile, Kubernetes, NodeFacts, Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["busybox", "sh"], ["bash"]) if shutil.which(shell[0])]


def conf(path: str, text: str, target: str = "") -> ConfigFile:
    return ConfigFile(path=path, data=text.encode(), target=target)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"/etc/sysctl.d/99-hardening.conf": "net.ipv4.ip_forward = 0\n"}, ["/etc/sysctl.d/99-hardening.conf"]),
        ({"/etc/sysctl.d/10-early.conf": "net.ipv4.ip_forward=0\n"}, []),
        ({"/etc/sysctl.d/zz.conf": "net/ipv4/ip_forward=0\n"}, ["/etc/sysctl.d/zz.conf"]),
        ({"/etc/sysctl.d/zz.conf": "-net.ipv4.ip_forward = 0"}, ["/etc/sysctl.d/zz.conf"]),
        ({"/etc/sysctl.d/zz.conf": "# net.ipv4.ip_forward = 0\n;net.ipv4.ip_forward=0\n"}, []),
        ({"/etc/sysctl.d/zz.conf": "net.ipv4.ip_forward = 0\nnet.ipv4.ip_forward = 1\n"}, []),
        ({"/etc/sysctl.d/k8s.conf": "net.ipv4.ip_forward = 1\n"}, []),
        ({"/etc/sysctl.d/zz.conf.bak": "net.ipv4.ip_forward = 0\n"}, []),
        ({"/usr/lib/sysctl.d/zz.conf": "net.ipv4.ip_forward = 0\n"}, ["/usr/lib/sysctl.d/zz.conf"]),
        # a file below /etc hides the one of the same name
        ({"/usr/lib/sysctl.d/zz.conf": "net.ipv4.ip_forward = 0\n", "/etc/sysctl.d/zz.conf": ""}, []),
        # Debian's link to /etc/sysctl.conf sorts behind ours
        ({"/etc/sysctl.d/99-sysctl.conf": "net.ipv4.ip_forward=0"}, ["/etc/sysctl.d/99-sysctl.conf"]),
        ({"/etc/sysctl.conf": "net.ipv4.ip_forward=0"}, []),
        ({"/etc/sysctl.d/a9.conf": "net.ipv4.ip_forward=0", "/run/sysctl.d/b.conf": "net.ipv4.ip_forward=1"}, []),
    ],
)
def test_the_files_that_win_at_boot_are_named(files: dict[str, str], found: list[str]) -> None:
    assert [path for *_, path in overrules({path: conf(path, text) for path, text in files.items()})] == found


def test_settings_in_force_and_at_boot_are_checked_where_a_kubelet_is() -> None:
    assert list(sysctl_checks(NodeFacts(sysctl={}))) == []
    facts = NodeFacts(kubernetes=Kubernetes(kubelet="1.30.14"), sysctl=dict(WANTED))
    assert [(check.id, check.status) for check in sysctl_checks(facts)] == [("kubernetes.sysctl", "passed")]
    path = "/etc/sysctl.d/99-hardening.conf"
    later = replace(facts, files={path: conf(path, "net.ipv4.ip_forward = 0")})
    assert [(check.status, check.message) for check in sysctl_checks(later)] == [
        ("warning", f"{path} sets net.ipv4.ip_forward = 0 and is read after {CONF}: Kubernetes needs 1")
    ]
    assert list(boot_warnings(later)) == [check.message for check in sysctl_checks(later)]
    off = replace(facts, sysctl={"net.ipv4.ip_forward": "0"})
    [check] = sysctl_checks(off)
    assert check.status == "failed"
    assert check.message.startswith("net.bridge.bridge-nf-call-iptables is not there, ")


def test_the_file_says_what_is_wanted() -> None:
    text = (Path(__file__).parents[2] / "gpunode/templates/sysctl.conf.j2").read_text()
    pairs = [line.split(" = ") for line in text.splitlines() if not line.startswith("#")]
    assert dict(pairs) == dict(WANTED)


# ---------------------------------------------------------------- activate.sh, in a network of its own

FAKES = "need_root() { :; }\nlock() { :; }\nprior() { :; }\njournal() { :; }\n"
Settings = Callable[..., tuple[Outcome, str]]


@pytest.fixture(params=SHELLS, ids=" ".join)
def settings(request: pytest.FixtureRequest) -> Settings:
    """activate.sh with some settings, in a network that begins with forwarding off; what it says, and left."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    head, mark, main = script("activate.sh").rpartition(
        "# ---------------------------------------------------------------- main"
    )

    def run(value: dict[str, str], *, check: bool = False) -> tuple[Outcome, str]:
        text = program(f"{head}{FAKES}{mark}{main}", activate_request({"sysctl": value}, check=check))
        shell = " ".join(request.param)
        place = "/proc/sys/net/ipv4/ip_forward"
        inside = f'echo 0 >{place}; {shell} -s; status=$?; echo "left $(cat {place})"; exit $status'
        done = subprocess.run(
            ["unshare", "-n", "sh", "-c", inside], input=text, capture_output=True, text=True, timeout=30
        )
        return parse_outcome(done.stdout, done.returncode), done.stdout.rsplit("left ", 1)[1].strip()

    return run


def test_a_setting_is_in_force_afterwards(settings: Settings) -> None:
    outcome, left = settings({"net.ipv4.ip_forward": "1"})
    assert (outcome.status, outcome.texts, left) == ("changed", ("net.ipv4.ip_forward = 1 (was 0)",), "1")


def test_check_mode_says_so_and_sets_nothing(settings: Settings) -> None:
    outcome, left = settings({"net.ipv4.ip_forward": "1", "net.no.such": "1"}, check=True)
    assert outcome.texts == ("net.ipv4.ip_forward = 1 (was 0)", "net.no.such = 1 (was not there)")
    assert (outcome.status, left) == ("changed", "0")


def test_a_setting_that_is_so_already_is_left(settings: Settings) -> None:
    assert settings({"net.ipv4.ip_forward": "0"})[0].status == "unchanged"


def test_a_setting_that_the_kernel_does_not_have_is_named(settings: Settings) -> None:
    outcome, _ = settings({"net.no.such": "1"})
    assert (outcome.status, outcome.message) == ("failed", "there is no kernel setting net.no.such")


def test_settings_are_lines_of_the_request() -> None:
    assert activate_request({"sysctl": {"net.ipv4.ip_forward": "1"}}) == {"sysctl": b"net.ipv4.ip_forward 1\n"}
