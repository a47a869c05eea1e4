"""Probes that are given away: what would tell whose machine it is has a placeholder, and the machine is the same."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.facts.redact import redact, redact_texts

CASES = Path(__file__).parent.parent / "cases" / "probes"
SECRETS = """#: gpunode-probe 1
#: system
| hostname gpu-17
| user mia
| boot_id 3d0ff2b1-8c0e-4c7b-9a52-0f6c1d7e9a11
#: units
| process 12	/usr/bin/kubelet	--node-ip=10.20.30.43	--hostname-override=gpu-17	--version=580.95.05
#: xids
| gpu-17 kernel: NVRM: Xid (PCI:0000:21:00): 63, mac aa:bb:cc:dd:ee:ff, fd00:12:34:56::7, 10.20.30.43, /home/mia/x
#: packages
| manager apt
| ii 	nvidia-fs	1.2.3.4	amd64
#: files
#: file /etc/docker/daemon.json
| 644 mia:mia {size}
{data}
#: end
"""


def test_redaction_hides_names_addresses_and_secrets_and_keeps_the_rest() -> None:
    body = b'{"registry-mirrors": ["http://10.20.30.43"], "log-opts": {"password": "hunter2"}, "data-root": "/srv/mia"}'
    lines = "\n".join(f"| {line}" for line in base64.encodebytes(body).decode().splitlines())
    text = redact(SECRETS.format(size=len(body), data=lines))
    facts = parse_probe(text)
    file = facts.files["/etc/docker/daemon.json"]
    assert file.data is not None
    everything = text + file.data.decode()
    for secret in ("gpu-17", "mia", "10.20.30.43", "aa:bb:cc", "fd00:12", "8c0e-4c7b", "hunter2"):
        assert secret not in everything
    assert everything.count("192.0.2.1") == 3, "the same address has the same placeholder"
    assert "580.95.05" in text
    assert facts.packages["nvidia-fs"].version == "1.2.3.4"
    assert (facts.hostname, facts.user, file.owner) == ("host-1", "user-1", "user-1:user-1")


@pytest.mark.parametrize("name", sorted(folder.name for folder in CASES.iterdir()))
def test_a_redacted_probe_gives_the_same_machine(name: str) -> None:
    text = (CASES / name / "probe.txt").read_text()
    facts, redacted = parse_probe(text), parse_probe(redact(text))
    kept = ("distro", "kernels", "gpus", "nvswitches", "packages", "cuda", "secure_boot")
    assert [getattr(redacted, key) for key in kept] == [getattr(facts, key) for key in kept]
    assert redacted.files.keys() == facts.files.keys()


def test_a_host_is_hidden_with_and_without_its_domain() -> None:
    text = "#: gpunode-probe 1\n#: system\n| hostname gpu17.example.com\n#: xids\n| Nov 23 gpu17 kernel: x\n#: end\n"
    assert "gpu17" not in redact(text) and redact(text).count("host-1") == 2


def test_what_the_driver_prints_before_an_xid_names_no_machine() -> None:
    """As driver 580 does: the GPU's UUID and the serial number of its board, in lines of their own."""
    kernel_log = (
        "[  462.079833] NVRM: GPU at PCI:0000:00:06: GPU-3d0ff2b1-8c0e-4c7b-9a52-0f6c1d7e9a11\n"
        "[  462.079845] NVRM: GPU Board Serial Number: 1650000000001\n"
    )
    shown = redact_texts({"dmesg.txt": kernel_log})["dmesg.txt"]
    assert "NVRM: GPU Board Serial Number: serial\n" in shown
    assert "NVRM: GPU at PCI:0000:00:06: GPU-00000000-0000-0000-0000-000000000001\n" in shown


def test_facts_as_json_name_the_host_for_all_texts_beside_them() -> None:
    shown = redact_texts({"record.json": '{"hostname": "gpu-17"}', "dmesg.txt": "gpu-17 kernel: a"})
    assert list(shown.values()) == ['{"hostname": "host-1"}', "host-1 kernel: a"]
