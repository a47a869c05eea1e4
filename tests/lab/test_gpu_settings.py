"""`gpu` of gpunode.yml on a node with NVIDIA's own nvidia-smi: in force, after a reboot, with drift, and undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node

from gpunode.core.model import ENDS
from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

ASK = "nvidia-smi --query-gpu=persistence_mode,power.limit,clocks.gr,ecc.mode.current,ecc.mode.pending"
SAID = f"{ASK} --format=csv,noheader,nounits"
WISH = {"persistence": True, "power_limit": 500, "clocks": "800,1410", "ecc": False}


def test_settings_are_made_kept_over_a_reboot_and_undone(
    provisioned: Callable[..., Lab], run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rest = {"driver": {"branch": "595"}, "toolkit": {"version": "none"}}
    lab = provisioned(rest, distro="debian:13", gpus=("h100",), engines=(), name="t-gpu-settings")
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), rest)
    found = node.sh(SAID)
    assert found.split(", ")[3].strip() == "Enabled"
    node.set({**rest, "gpu": WISH, "reboot": "never"})
    node.json("provision", "--yes", exit=3)
    assert node.sh(SAID).strip() == "Enabled, 500.00, 800, Enabled, Disabled", "nothing was reset"
    waits = [c["message"] for c in node.json("verify", "--no-smoke", exit=3)["checks"] if c["status"] in ENDS]
    assert waits == ["GPU ECC: Enabled, and Disabled after a reset; wanted Disabled"]
    node.set({**rest, "gpu": WISH})
    boot = node.sh("cat /proc/sys/kernel/random/boot_id")
    done = node.json("provision", "--yes")
    assert any("rebooted: ECC of" in text for text in done["changed"]), done["changed"]
    assert node.sh("cat /proc/sys/kernel/random/boot_id") != boot
    assert node.sh(SAID).strip() == "Enabled, 500.00, 800, Disabled, Disabled"
    assert node.json("provision", "--yes")["changed"] == []
    node.sh("nvidia-smi -pl 700 >/dev/null")
    assert "restart gpunode-gpu.service" in node.json("provision", "--yes")["changed"]
    assert node.sh(SAID).strip() == "Enabled, 500.00, 800, Disabled, Disabled"
    run_gpunode("uninstall", "-i", lab.inventory, "--yes")
    [_, state] = Path(lab.nodes[0].hardware / "standin-settings").read_text().rpartition("ecc.mode.pending\t")[::2]
    assert state.split()[0] == "Enabled", "as before, with the next reset"
