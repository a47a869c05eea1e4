"""The request of activate.sh and its reboot policy, as pure functions."""

import pytest

from gpunode.core.errors import InputError
from gpunode.core.items.activation import (
    ActivationResult,
    activate_nothing,
    activate_request,
    may_reboot,
    parse_activation,
)
from gpunode.core.model import Changed


def test_every_key_becomes_one_file_of_lines() -> None:
    value = {
        "load": ["nvidia", "nvidia_uvm"],
        "unload": ["nouveau"],
        "initramfs": True,
        "links": True,
        "version": "580.178.04",
        "services": ["nvidia-persistenced"],
        "alternatives": {"cuda": "/usr/local/cuda-12.8"},
        "reboot": "if-needed",
    }
    assert activate_request(value, check=True) == {
        "load": b"nvidia\nnvidia_uvm\n",
        "unload": b"nouveau\n",
        "initramfs": b"1\n",
        "links": b"1\n",
        "version": b"580.178.04\n",
        "services": b"nvidia-persistenced\n",
        "alternatives": b"cuda /usr/local/cuda-12.8\n",
        "check": b"1\n",
    }


def test_in_check_mode_it_is_reported_what_the_steps_before_would_have_changed() -> None:
    before = [
        Changed(kind="file", name="/etc/modprobe.d/gpunode-nouveau.conf"),
        Changed(kind="package", name="nvidia-open", was="3:580.95.05-1.el9", now="595.*"),
        Changed(kind="package", name="dkms", now="3.0"),
        Changed(kind="package", name="nvidia-open"),
        Changed(kind="unit", name="a.service", was="1", now="2"),
    ]
    assert activate_request({"load": ["nvidia"]}, check=True, after=before)["foretold"] == (
        b"file /etc/modprobe.d/gpunode-nouveau.conf\nversion 3:580.95.05-1.el9\n"
    )
    assert set(activate_request({"load": ["nvidia"]}, after=before)) == {"load"}


@pytest.mark.parametrize(
    "value", [{"load": ["a b"]}, {"services": ["-x"]}, {"reboot": "now"}, {"lod": []}, {"alternatives": {"cuda": "x"}}]
)
def test_what_is_not_a_module_unit_or_policy_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        activate_request(value)


def test_a_policy_and_a_version_alone_need_no_round_trip() -> None:
    assert activate_nothing({"reboot": "always", "version": "1", "load": [], "initramfs": False})
    assert not activate_nothing({"initramfs": True})
    assert not activate_nothing({"links": True})
    with pytest.raises(InputError, match="unknown key 'lod'"):
        activate_nothing({"lod": ["nvidia"]})


@pytest.mark.parametrize(
    ("policy", "reason", "changed", "wanted", "done"),
    [
        ("never", "", True, False, False),
        ("never", "nouveau is in use", True, True, False),
        ("if-needed", "nouveau is in use", False, True, True),
        ("if-needed", "", True, False, False),
        ("always", "", True, True, True),
        ("always", "", False, False, False),
        ("always", "nouveau is in use", False, True, True),
    ],
)
def test_the_policy_decides_about_the_reboot(policy: str, reason: str, changed: bool, wanted: bool, done: bool) -> None:
    why, hindered = may_reboot({"reboot": policy}, ActivationResult(reboot=reason), changed=changed, here=False)
    assert (bool(why), bool(why) and not hindered) == (wanted, done)


@pytest.mark.parametrize("policy", ["if-needed", "always"])
def test_the_machine_that_it_runs_on_is_rebooted_only_when_that_was_asked_for(policy: str) -> None:
    printed = ActivationResult(reboot="nouveau is in use")
    why, hindered = may_reboot({"reboot": policy}, printed, changed=True, here=True)
    assert (why, "reboot_controller" in hindered) == ("nouveau is in use", True)
    asked = {"reboot": policy, "reboot_controller": True}
    assert may_reboot(asked, printed, changed=True, here=True) == ("nouveau is in use", "")
    assert may_reboot({**asked, "reboot": "never"}, printed, changed=True, here=True)[1] == "the policy is never"


def test_boot_id_and_reason_are_read_from_their_lines() -> None:
    text = "log\ngpunode\tboot_id\tb-1\ngpunode\treboot\tnouveau is in use\ngpunode\tstatus\tunchanged\n"
    assert parse_activation(text) == ActivationResult(reboot="nouveau is in use", boot_id="b-1")
