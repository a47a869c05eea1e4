"""gpunode against a playbook in the usual style (conventional/site.yml) with the same values: first, and again.

`python -m benchmarks.conventional 8`: so many nodes (an even number), half of them for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.first_provision import asked_for, installed, plan_of
from benchmarks.measure import GPUNODE, best_of_pairs, cpu, log, row, run, seconds
from gpunode import lab
from gpunode.lab import Lab

NODES = 4
SITE = Path(__file__).with_name("conventional") / "site.yml"


def values(made: Lab, like: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The playbook's variables: what the plan names, with the versions and configurations that node `like` has now."""

    def of(role: str, option: str) -> list[dict[str, Any]]:
        found = (s["value"] for s in steps if (s["role"], s["option"]) == (role, option))
        return [file for value in found for file in value if file["content"] is not None]

    def key_of(source: str, files: list[dict[str, Any]]) -> dict[str, str]:
        return {"url": sources[source]["key"], "path": next(f["path"] for f in files if f["path"].endswith(".asc"))}

    sources = yaml.safe_load(made.spec.read_text())["sources"]
    exact = {name: package for package in installed(made, like) for name in [package.partition("=")[0]]}
    names = {role: asked_for([s for s in steps if s["role"] == role]) for role in ("driver", "toolkit")}
    asked = [p for s in steps if s["option"] == "packages" for p in s["value"]["install"]]
    driver, toolkit = of("driver", "sources"), of("toolkit", "sources")
    return {
        "driver_key": key_of("nvidia-cuda", driver),
        "driver_sources": [f for f in driver if not f["path"].endswith(".asc")],
        "header_packages": [exact[n] for n in names["driver"] if n.startswith("linux-") and n in exact],
        "driver_packages": [exact[n] for n in names["driver"] if not n.startswith("linux-") and n in exact],
        "held_packages": [p["name"] for p in asked if p["hold"] and p["name"] in exact],
        "driver_files": of("driver", "files"),
        "toolkit_key": key_of("nvidia-container-toolkit", toolkit),
        "toolkit_sources": [f for f in toolkit if not f["path"].endswith(".asc")],
        "toolkit_packages": [exact[n] for n in names["toolkit"] if n in exact],
        "runtime_files": of("runtime", "files"),
        "containerd_config": made.run(like, "cat /etc/containerd/config.toml").stdout,
        "docker_config": made.run(like, "cat /etc/docker/daemon.json").stdout,
    }


def main(count: int) -> None:
    with lab.up(count, name="bench-usual", log=log) as made, tempfile.TemporaryDirectory() as tmp:
        names = [node.name for node in made.nodes]
        ours, usual = names[: count // 2], names[count // 2 :]
        steps = plan_of(made, usual[0])
        variables = Path(tmp, "vars.yml")
        scripts = Path(sys.executable).parent
        words = [scripts / "ansible-playbook", "-i", made.inventory, "-l", ",".join(usual), "-e", f"@{variables}", SITE]

        def provision() -> None:
            run(GPUNODE, "provision", "-i", made.inventory, "-c", made.spec, "--limit", ",".join(ours), "--yes")

        def playbook() -> None:
            done = subprocess.run(
                ["env", "ANSIBLE_PIPELINING=1", "ANSIBLE_FORKS=50", *map(str, words)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

        first_ours = seconds(provision)
        variables.write_text(json.dumps(values(made, ours[0], steps)))
        first_usual = seconds(playbook)
        again_ours, again_usual = best_of_pairs(provision, playbook, times=2)
        cpu_ours, cpu_usual = cpu(provision), cpu(playbook)
    half = count // 2
    each = f"{half} nodes each"
    row(
        f"first run of a playbook in the usual style against `provision` ({each})",
        f"{first_usual / first_ours:.2f} × ({first_usual:.0f} s against {first_ours:.0f} s)",
        "≥ 2 ×",
    )
    row(
        f"the same when nothing is to be done ({each})",
        f"{again_usual / again_ours:.1f} × ({again_usual:.1f} s against {again_ours:.1f} s)",
        "≥ 20 ×",
    )
    row(
        f"the controller's CPU time for that, per node ({each})",
        f"{cpu_usual / cpu_ours:.1f} × ({1000 * cpu_usual / half:.0f} ms against {1000 * cpu_ours / half:.0f} ms)",
        "",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NODES)
