"""knowledge/scheduler.toml as values: what the supported releases of kube-scheduler and kubelet take."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.core.errors import InputError
from gpunode.core.knowledge import Table, source_of
from gpunode.core.knowledge.support import Support
from gpunode.core.late import dataclass


@dataclass(frozen=True, kw_only=True)
class GoneFlag:
    """A flag, the first minor release without it, what stands for it, and who says so."""

    name: str
    gone: int
    instead: str
    source: str


@dataclass(frozen=True, kw_only=True)
class MovedFlag:
    """A flag and the field that says the same: its path and its type."""

    flag: str
    field: tuple[str, ...]
    type: str = "string"
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class SchedulerRules:
    """All of it; `newest` is the newest release whose fields are known."""

    newest: int
    api: str
    api_before: str
    api_before_until: int
    api_source: str
    flags: tuple[GoneFlag, ...]
    moved: tuple[MovedFlag, ...]
    plugins_removed: tuple[tuple[int, tuple[str, ...]], ...]  # from which release on, names
    kubelet: tuple[MovedFlag, ...]
    resource: str
    node_port: int
    url_path: str
    config_file: str
    extender_source: str
    schemas: Table
    support: Mapping[str, Support]

    def reads(self, api: str, minor: int) -> bool:
        """Whether kube-scheduler of that release reads a configuration of that API."""
        return api == self.api or (api == self.api_before and minor <= self.api_before_until)

    def gone_flags(self, minor: int) -> dict[str, GoneFlag]:
        return {one.name: one for one in self.flags if minor >= one.gone}


def minor_of(version: str) -> int:
    """The minor release of "1.28", "v1.28.3", "1.28.3-gke.100"; InputError for anything else."""
    found = re.fullmatch(r"v?1\.(\d{1,3})([.+-].*)?", version.strip())
    if not found:
        what = f"server version {version!r}" if version else "the release of Kubernetes is not known"
        fix = "" if version else "give it: --server-version 1.34"
        raise InputError(what, expected="a release of Kubernetes, such as 1.34 or v1.34.2", fix=fix)
    return int(found[1])


def parse_rules(rules: Table, schemas: Table, support: Mapping[str, Support]) -> SchedulerRules:
    """The tables of scheduler.toml, kube_schemas.toml and support.toml → SchedulerRules."""
    config, extender = rules["config"], rules["extender"]
    gone = [
        GoneFlag(name=name, gone=row["gone"], instead=row["instead"], source=source_of(row, rules))
        for row in rules["flags"]
        for name in row["names"]
    ]
    return SchedulerRules(
        newest=int(rules["newest"]),
        api=config["api"],
        api_before=config["api_before"],
        api_before_until=config["api_before_until"],
        api_source=source_of(config, rules),
        flags=tuple(gone),
        moved=tuple(_moved(row, rules) for row in rules["moved"]),
        plugins_removed=tuple((row.get("from", 0), tuple(row["removed"])) for row in rules["plugins"]),
        kubelet=tuple(_moved(row, rules) for row in rules["kubelet"]),
        resource=extender["resource"],
        node_port=extender["node_port"],
        url_path=extender["path"],
        config_file=extender["config_file"],
        extender_source=source_of(extender, rules),
        schemas=schemas,
        support=support,
    )


def _moved(row: Table, rules: Table) -> MovedFlag:
    return MovedFlag(
        flag=row["flag"],
        field=tuple(row["field"].split(".")),
        type=row.get("type", "string"),
        source=source_of(row, rules),
    )
