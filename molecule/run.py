"""Run Molecule scenarios on nodes of the lab: python molecule/run.py SCENARIO [MOLECULE COMMAND, by default test].

A scenario is molecule/NAME/{nodes.yml,molecule.yml}: the nodes as `gpunode lab molecule` reads them, and what differs
from .config/molecule/config.yml.  The nodes are prepared here, started and destroyed by Molecule's podman driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpunode import lab
from gpunode.lab.molecule import read_nodes, write_base
from gpunode.lab.nodes import load_nodes

ROOT = Path(__file__).resolve().parent.parent


def main(scenario: str, *command: str) -> int:
    """Exit status of Molecule; the nodes are gone afterwards."""
    nodes = read_nodes(ROOT / "molecule" / scenario / "nodes.yml")
    try:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "nodes.yml"
            environment = os.environ | write_base(nodes, base, log=print)
            words = ["molecule", "-c", ".config/molecule/config.yml", "-c", str(base), *(command or ("test",))]
            return subprocess.run([*words, "-s", scenario], cwd=ROOT, env=environment, check=False).returncode
    finally:
        there = {node.name for node in load_nodes()}
        lab.down([node["name"] for node in nodes if node["name"] in there])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
