"""Run Molecule scenarios on nodes of the lab: python molecule/run.py SCENARIO [MOLECULE COMMAND, by default test].

A scenario is molecule/NAME/{nodes.yml,molecule.yml}: the nodes in the words of gpunode.lab.platform, and what differs
from .config/molecule/config.yml.  The nodes are prepared here, started and destroyed by Molecule's podman driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gpunode import lab
from gpunode.lab.nodes import load_nodes

ROOT = Path(__file__).resolve().parent.parent


def main(scenario: str, *command: str) -> int:
    """Exit status of Molecule; the nodes are gone afterwards."""
    wanted = yaml.safe_load((ROOT / "molecule" / scenario / "nodes.yml").read_text())
    names = [node["name"] for node in wanted]
    try:
        platforms = [lab.platform(**node) for node in wanted]
        environment = os.environ | platforms[0]["environment"]
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "nodes.yml"
            base.write_text(yaml.safe_dump(_base(Path(folder), platforms)))
            words = ["molecule", "-c", ".config/molecule/config.yml", "-c", str(base), *(command or ("test",))]
            return subprocess.run([*words, "-s", scenario], cwd=ROOT, env=environment, check=False).returncode
    finally:
        lab.down(names)


def _base(folder: Path, platforms: list[dict[str, Any]]) -> dict[str, Any]:
    """Molecule's configuration of the nodes: how to start them, and where their package repositories are."""
    sources = {node.name: node.sources for node in load_nodes()}
    host_vars = {}
    for platform in platforms:
        config = folder / f"{platform['name']}.yml"
        config.write_text(yaml.safe_dump({"sources": dict(sources[platform["name"]])}))
        host_vars[platform["name"]] = {"gpunode_config": str(config)}
        platform.pop("environment")
        # not as `network`: Molecule would take the lab's network for its own, and remove it
        platform["extra_opts"].append(f"--network={platform.pop('network')}")
    return {"platforms": platforms, "provisioner": {"inventory": {"host_vars": host_vars}}}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
