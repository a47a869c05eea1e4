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


def set_up_apt(made: Lab, host: str, steps: list[dict[str, Any]]) -> None:
    """Sources, keys and preferences of the plan, laid by hand: the package manager alone needs them too."""
    for file in (f for step in steps if step["option"] in ("sources", "files") for f in step["value"]):
        path = shlex.quote(file["path"])
        command = f"rm -f {path}" if file["content"] is None else f"mkdir -p $(dirname {path}) && cat >{path}"
        on_node(made, host, command, stdin=file["content"] or "")


def asked_for(steps: list[dict[str, Any]]) -> list[str]:
    """Names of the packages that the plan names; the others are their dependencies."""
    return sorted({p["name"] for step in steps if step["option"] == "packages" for p in step["value"]["install"]})


def installed(made: Lab, host: str) -> set[str]:
    """Every package of a node as NAME=VERSION."""
    return set(made.run(host, "dpkg-query -W -f '${Package}=${Version}\\n'").stdout.split())


def main() -> None:
    with lab.up(2, name="bench-first", log=log) as made:
        ours, bare = (node.name for node in made.nodes)
        before = installed(made, bare)
        steps = plan_of(made, bare)
        set_up_apt(made, bare, steps)
        first = seconds(
            lambda: run(GPUNODE, "provision", "-i", made.inventory, "-c", made.spec, "--limit", ours, "--yes")
        )
        have = installed(made, ours)
        wanted = [p for p in have if p.split("=")[0] in asked_for(steps)]
        headers = [p for p in wanted if p.startswith("linux-")]  # before what DKMS builds against them
        installs = " && ".join(INSTALL + shlex.join(some) for some in (headers, sorted({*wanted} - {*headers})))
        apt = seconds(lambda: on_node(made, bare, f"apt-get -qq update && {installs}"))
        shared = (have & installed(made, bare)) - before
    row(
        f"first `provision` against apt-get alone ({len(shared)} of {len(have - before)} packages the same)",
        f"{first / apt:.2f} × ({first:.0f} s against {apt:.0f} s)",
        "≤ 1.3 ×",
    )


if __name__ == "__main__":
    main()
