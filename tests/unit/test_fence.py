"""Unattended upgrades stay on and leave the driver alone."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.items.driver import UNATTENDED_CONF
from gpunode.core.model import ConfigFile, NodeFacts, Service
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

PROBES = Path(__file__).parents[1] / "cases/probes"
UPGRADES = {"unattended-upgrades": Service(name="unattended-upgrades", active="active", enabled="enabled")}


@cache
def probe(name: str) -> NodeFacts:
    return parse_probe((PROBES / name / "probe.txt").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def no_key_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")


def fence(facts: NodeFacts, spec: dict[str, Any] | None = None) -> str | None:
    """The file that the plan writes, "gone" when it removes it, None when it leaves it alone."""
    for step in DesiredState(spec or {}).plan("node1", facts).plan.steps:
        for file in step.value if step.id == "driver.upgrades" else ():
            if file["path"] == UNATTENDED_CONF:
                return "gone" if file["content"] is None else str(file["content"])
    return None


def passed_by(text: str, name: str) -> bool:
    """As unattended-upgrades judges a name."""
    return any(re.match(pattern, name) for pattern in re.findall(r'^ +"(.*)";$', text, re.M))


@pytest.mark.parametrize(
    ("name", "fenced", "fenced_prebuilt"),
    [
        ("nvidia-open", True, True),
        ("nvidia-kernel-open-dkms", True, True),
        ("libnvidia-ml1", True, True),
        ("libnvidia-container1", True, True),
        ("libcuda1", True, True),
        ("firmware-nvidia-gsp", True, True),
        ("nvidia-fabricmanager-580", True, True),
        ("linux-modules-nvidia-580-server-generic", False, True),
        ("linux-image-generic", False, True),
        ("linux-headers-6.8.0-60-generic", False, True),
        ("linux-libc-dev", False, False),
        ("libnvpair1linux", False, False),
        ("openssl", False, False),
        ("libcudart12", False, False),
    ],
)
def test_what_unattended_upgrades_pass_by(name: str, fenced: bool, fenced_prebuilt: bool) -> None:
    by_dkms = fence(replace(probe("debian12-h100-fresh"), services=UPGRADES))
    prebuilt = fence(replace(probe("ubuntu2404-two-models"), services=UPGRADES))
    assert by_dkms and prebuilt
    assert (passed_by(by_dkms, name), passed_by(prebuilt, name)) == (fenced, fenced_prebuilt)


@pytest.mark.parametrize(
    ("services", "spec"),
    [({}, {}), (UPGRADES, {"driver": {"hold": False}}), (UPGRADES, {"driver": {"method": "preinstalled"}})],
)
def test_no_fence_without_unattended_upgrades_or_where_nothing_is_to_be_held(services: Any, spec: Any) -> None:
    node = "debian12-h100-provisioned" if spec else "debian12-h100-fresh"
    assert fence(replace(probe(node), services=services), spec) is None


def test_a_fence_that_is_no_longer_wanted_goes() -> None:
    file = ConfigFile(path=UNATTENDED_CONF, sha256="1" * 64, data=b"// old\n")
    facts = replace(probe("debian12-h100-provisioned"), services=UPGRADES)
    facts = replace(facts, files={**facts.files, UNATTENDED_CONF: file})
    assert fence(facts, {"driver": {"hold": False}}) == "gone"


def test_where_another_package_manager_rules_its_own_locks_do_it() -> None:
    assert fence(replace(probe("rocky9-h100-fresh"), services=UPGRADES)) is None
