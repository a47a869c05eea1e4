"""The first provision of a node against the package manager alone, with the same packages from the same place."""

from __future__ import annotations

import json
import shlex
from typing import Any

from benchmarks.measure import GPUNODE, log, row, run, seconds
from gpunode import lab
from gpunode.lab import Lab

INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-confold install --yes "


def plan_of(made: Lab, host: str) -> list[dict[str, Any]]:
    text = run(GPUNODE, "plan", "-i", made.inventory, "-c", made.spec, "--limit", host, "--format", "json", ok=(3,))
    return list(json.loads(text)["hosts"][0]["steps"])


def on_node(made: Lab, host: str, command: str, *, stdin: str = "") -> None:
    done = made.run(host, command, stdin=stdin)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def set_up_repositories(made: Lab, host: str, steps: list[dict[str, Any]]) -> None:
    """The sources and keys of the plan, written by hand: the package manager alone needs them too."""
    for source in (s for step in steps if step["option"] == "sources" for s in step["value"]):
        path = shlex.quote(source["path"])
        command = f"rm -f {path}" if source["content"] is None else f"mkdir -p $(dirname {path}) && cat >{path}"
        on_node(made, host, command, stdin=source["content"] or "")


def packages(steps: list[dict[str, Any]]) -> list[str]:
    wanted = [p for step in steps if step["option"] == "packages" for p in step["value"]["install"]]
    return sorted({f"{p['name']}={p['version']}" if p["version"] else p["name"] for p in wanted})


def main() -> None:
    with lab.up(2, name="bench-first", log=log) as made:
        ours, bare = (node.name for node in made.nodes)
        steps = plan_of(made, bare)
        set_up_repositories(made, bare, steps)
        words = " ".join(map(shlex.quote, packages(steps)))
        apt = seconds(lambda: on_node(made, bare, f"apt-get -qq update && {INSTALL} {words}"))
        first = seconds(
            lambda: run(GPUNODE, "provision", "-i", made.inventory, "-c", made.spec, "--limit", ours, "--yes")
        )
    row(
        f"first `provision` against apt-get alone ({len(packages(steps))} packages)",
        f"{first / apt:.2f} × ({first:.0f} s against {apt:.0f} s)",
        "≤ 1.3 ×",
    )


if __name__ == "__main__":
    main()
