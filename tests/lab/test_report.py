"""A report of a real run: a node with two GPUs, before it is provisioned, while it was, and afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.extended]


def test_a_run_a_plan_and_probes_tell_of_the_same_node(lab_up: Any, run_gpunode: Any, tmp_path: Path) -> None:
    lab = lab_up(gpus=("h100", "h100"), engines=("containerd",))
    [node] = lab.nodes
    words = ("-i", lab.inventory, "-c", lab.spec)

    def report(*args: object) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(run_gpunode("report", *args, "--format", "json").stdout)
        assert [host["name"] for host in data["hosts"]] == [node.name]
        return data["hosts"][0] | {"report": data}

    run_gpunode("plan", *words, "-o", tmp_path / "review", exit=3)
    planned = report(tmp_path / "review")
    assert planned["state"] == "pending" and planned["seen"]["versions"]["driver"] == ""
    run_gpunode("provision", tmp_path / "review", "--yes")
    ran = report("last")
    assert ran["state"] == "ok" and ran["run"]["state"] == "done" and ran["run"]["changed"]
    assert ran["report"]["run"]["waves"][0]["done"] == 1
    run_gpunode("detect", "-i", lab.inventory, "--save", tmp_path / "probes")
    verified = run_gpunode("verify", *words, "--format", "json").stdout
    (tmp_path / "probes/verify.json").write_text(verified)
    saved = report("--from", tmp_path / "probes", "-c", lab.spec)
    assert saved["state"] in ("ok", "warning") and "containerd.cri-nvidia" in {*saved["passed"], *_ids(saved)}
    assert ran["seen"] == saved["seen"]
    assert [gpu["index"] for gpu in ran["seen"]["gpus"]] == [0, 1]
    assert ran["seen"]["topology"] == {
        "names": ["GPU0", "GPU1"],
        "links": [["X", "PHB"], ["PHB", "X"]],
        "cpus": ["0-7", "0-7"],
        "numa": ["0", "0"],
    }
    page = run_gpunode("report", "last").stdout
    assert page.startswith("<!doctype html>") and node.name in page


def _ids(host: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in host["findings"]}
