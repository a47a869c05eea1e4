"""What `provision --check` says against what `provision` then does, over lab nodes of every package manager.

A thing is a package, a hold, a file, a module, a unit …, whatever happens to it.  Packages that nobody named, which
come as dependencies of others, are counted apart: before a repository is set up no package manager can say which.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import GPUNODE, log, row, run
from gpunode import lab
from gpunode.lab import Lab

# For each distribution what is asked of its node, one after the other; the last line asks for nothing new.
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "debian:12": (
        {"driver": {"version": "580.95.05"}, "cuda": {"versions": ["12.8"]}},
        {"driver": {"version": "580.178.04"}, "cuda": {"versions": ["12.8"]}},
        {"driver": {"branch": "595"}},
        {
            "driver": {"branch": "595", "flavour": "proprietary"},
            "runtimes": {"containerd": {"default_runtime": "runc"}},
        },
        {
            "driver": {"branch": "595", "flavour": "proprietary"},
            "runtimes": {"containerd": {"default_runtime": "runc"}},
        },
    ),
    "rocky:9": (
        {"driver": {"version": "580.95.05"}},
        {"driver": {"branch": "595"}},
        {"driver": {"branch": "580", "flavour": "proprietary"}},
    ),
    "sles:15": ({"driver": {"version": "580.95.05"}}, {"driver": {"branch": "595"}}),
    "arch": ({"driver": {}},),
}
# kinds of things by the words they are told in, before («would») and after
KINDS = (
    ("hold", r"(?:hold|held) (\S+)"),
    ("stream", r"enabled? stream (\S+ of module \S+)"),
    ("package", r"(?:installed|install|changed|change|removed|remove|finish installing) (\S+).*"),
    ("file", r"(?:creates|rewrites|removes|writes|renews) (/\S+)"),
    ("module", r"(?:unloaded|unload|loaded|load|exchange) (\S+).*"),
    ("unit", r"(?:enabled|enable|enables|starts) (?:and start(?:ed)? )?(\S+).*"),
    ("initramfs", r"(initramfs) .*"),
)


@dataclass(frozen=True, kw_only=True)
class Count:
    """Things announced, things that happened, and those that are both; `unnamed` dependencies are in neither."""

    announced: int
    happened: int
    both: int
    unnamed: int

    def __add__(self, other: Count) -> Count:
        return Count(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})


def things(lines: Iterable[str]) -> set[tuple[str, str]]:
    """Lines of `changed`, as (kind, name); a line of no kind is a thing of its own."""
    found = set()
    for line in lines:
        for kind, pattern in KINDS:
            if match := re.fullmatch(pattern, line):
                found.add((kind, match[1]))
                break
        else:
            found.add(("other", line))
    return found


def named(plan: dict[str, Any]) -> set[str]:
    """Names of the packages that the plan's steps name."""
    packages = [step["value"] for step in plan["steps"] if step["option"] == "packages"]
    return {p["name"] for value in packages for p in value["install"]} | {n for v in packages for n in v["remove"]}


def compare(made: Lab, spec: Path) -> Count:
    """Check, then provision the node."""

    def printed(verb: str, *more: str, ok: tuple[int, ...] = (0, 3)) -> dict[str, Any]:
        text = run(GPUNODE, verb, "-i", made.inventory, "-c", spec, *more, "--format", "json", ok=ok)
        return dict(json.loads(text)["hosts"][0])

    names = named(printed("plan"))
    announced = things(printed("provision", "--check")["changed"])
    happened = things(printed("provision", "--yes", ok=(0,))["changed"])
    unnamed = {thing for thing in happened - announced if thing[0] == "package" and thing[1] not in names}
    happened -= unnamed
    for what, some in (("said and not done", announced - happened), ("done and not said", happened - announced)):
        for kind, name in sorted(some):
            log(f"{made.name}: {what}: {kind} {name}")
    return Count(announced=len(announced), happened=len(happened), both=len(announced & happened), unnamed=len(unnamed))


def counted(distro: str, specs: Iterable[dict[str, Any]]) -> Count:
    """One fresh node, and each spec in turn."""
    total = Count(announced=0, happened=0, both=0, unnamed=0)
    name = f"bench-check-{re.sub(r'[^a-z0-9]', '', distro)}"
    with (
        lab.up(distro=distro, engines=("containerd",), name=name, log=log) as made,
        tempfile.TemporaryDirectory() as tmp,
    ):
        sources = yaml.safe_load(made.spec.read_text())
        path = Path(tmp, "gpunode.yml")
        for spec in specs:
            path.write_text(yaml.safe_dump(sources | spec))
            count = compare(made, path)
            log(f"{name}: {count}")
            total += count
    return total


def main(distros: list[str]) -> None:
    """All of CASES, or the distributions that are named."""
    total = Count(announced=0, happened=0, both=0, unnamed=0)
    cases = {distro: CASES[distro] for distro in distros or CASES}
    for distro, specs in cases.items():
        count = counted(distro, specs)
        log(f"{distro}: {count}")
        total += count
    runs = sum(map(len, cases.values()))
    of_printed, of_done = f"{total.both} of {total.announced}", f"{total.both} of {total.happened}"
    row(
        f"what `--check` says that then happens (precision, {runs} runs)",
        f"{total.both / total.announced:.1%} ({of_printed})",
        "100 %",
    )
    row("what happens that `--check` had said (recall)", f"{total.both / total.happened:.1%} ({of_done})", "100 %")
    row("dependencies that came besides, named by no plan", str(total.unnamed))


if __name__ == "__main__":
    main(sys.argv[1:])
