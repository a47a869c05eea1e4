"""knowledge/scheduler.toml as values: what kube-scheduler and kubelet of a release take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.errors import InputError

Table = Mapping[str, Any]
GROUP = "kubescheduler.config.k8s.io"


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A flag or gate, the first minor release without it, what stands for it, and who says so."""

    name: str
    gone: int
    instead: str
    source: str
    default: int = 0  # of a gate: the release from which it is on by default


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A flag and the field that says the same: its path, its type, from which release."""

    flag: str
    field: tuple[str, ...]
    type: str = "string"
    start: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class SchedulerRules:
    """All of it.  `apis` is minor release → (what is written, what is read), the newest for all beyond."""

    newest: int
    apis: Mapping[int, tuple[str, tuple[str, ...]]]
    api_sources: Mapping[int, str]
    flags: tuple[Gone, ...]
    moved: tuple[Moved, ...]
    plugins_removed: tuple[tuple[str, int, tuple[str, ...]], ...]  # version, from which release on, names
    gates: tuple[Gone, ...]
    kubelet: tuple[Moved, ...]
    resource: str
    node_port: int
    url_path: str
    policy_file: str
    config_file: str
    extender_source: str
    schemas: Table = field(default_factory=dict)

    def best(self, minor: int) -> str:
        """The version of the configuration to write: "Policy", "v1beta1" … "v1"."""
        return self.apis[min(minor, self.newest)][0]

    def takes(self, minor: int) -> tuple[str, ...]:
        """The versions of the configuration that are read."""
        return self.apis[min(minor, self.newest)][1]

    def api_source(self, minor: int) -> str:
        return self.api_sources[min(minor, self.newest)]

    def policy(self, minor: int) -> bool:
        """Whether a Policy is read (--policy-config-file)."""
        return minor < next(one.gone for one in self.flags if one.name == "policy-config-file")

    def gone_flags(self, minor: int) -> dict[str, Gone]:
        return {one.name: one for one in self.flags if minor >= one.gone}


def minor_of(version: str) -> int:
    """The minor release of "1.28", "v1.28.3", "1.28.3-gke.100"; InputError for anything else, or too old."""
    found = re.fullmatch(r"v?1\.(\d{1,3})([.+-].*)?", version.strip())
    if not found:
        raise InputError(f"server version {version!r}", expected="a release of Kubernetes, such as 1.34 or v1.34.2")
    if int(found[1]) < 8:
        raise InputError(
            f"server version {version!r}", expected="1.8 or later", fix="such a cluster has no device plugins"
        )
    return int(found[1])


def parse_rules(rules: Table, schemas: Table) -> SchedulerRules:
    """The tables of scheduler.toml and kube_schemas.toml → SchedulerRules."""
    newest, names = int(rules["newest"]), rules["sources"]
    apis: dict[int, tuple[str, tuple[str, ...]]] = {}
    sources: dict[int, str] = {}
    for row in rules["configs"]:
        for minor in range(row["from"], row.get("until", newest) + 1):
            apis[minor] = (row["best"], tuple(row["takes"]))
            sources[minor] = _source(row, names)
    gone = [
        Gone(name=name, gone=row["gone"], instead=row["instead"], source=_source(row, names))
        for row in rules["flags"]
        for name in row["names"]
    ]
    gates = [
        Gone(
            name=row["name"],
            gone=row["gone"],
            instead=row["instead"],
            source=_source(row, names),
            default=row.get("default", 0),
        )
        for row in rules["gates"]
    ]
    extender = rules["extender"]
    return SchedulerRules(
        newest=newest,
        apis=apis,
        api_sources=sources,
        flags=tuple(gone),
        moved=tuple(_moved(row, names) for row in rules["moved"]),
        plugins_removed=tuple((row["api"], row.get("from", 0), tuple(row["removed"])) for row in rules["plugins"]),
        gates=tuple(gates),
        kubelet=tuple(_moved(row, names) for row in rules["kubelet"]),
        resource=extender["resource"],
        node_port=extender["node_port"],
        url_path=extender["path"],
        policy_file=extender["policy_file"],
        config_file=extender["config_file"],
        extender_source=_source(extender, names),
        schemas=schemas,
    )


def _moved(row: Table, names: Table) -> Moved:
    return Moved(
        flag=row["flag"],
        field=tuple(row["field"].split(".")) if row["field"] else (),
        type=row.get("type", "string"),
        start=row.get("from", 0),
        source=_source(row, names),
    )


def _source(row: Table, names: Table) -> str:
    """The row's source, its short names spelled out."""
    return re.sub(r"\A\w+|(?<=; )\w+", lambda found: str(names.get(found[0], found[0])), str(row["source"]))
