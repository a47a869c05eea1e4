"""The data of knowledge/kubernetes.toml as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.knowledge import Table
from gpunode.core.knowledge.support import Support
from gpunode.core.late import dataclass


@dataclass(frozen=True, order=True)
class Server:
    """A Kubernetes minor version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, kw_only=True)
class ApiVersion:
    """An apiVersion, and the first and last server that serves it (None: still served)."""

    api: str
    since: Server
    until: Server | None

    def served(self, server: Server) -> bool:
        return self.since <= server and (self.until is None or server <= self.until)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A helm chart: where it is, and which version."""

    name: str
    repository: str
    version: str
    kube: Server  # the oldest server that the chart itself accepts


@dataclass(frozen=True, kw_only=True)
class MemoryShares:
    """What shares of a GPU's memory by DRA need: servers with the feature, and NVIDIA's driver."""

    gate: str  # the feature gate of Kubernetes
    since: Server  # the first server that has it
    on: Server  # the first that has it on by default
    driver: str  # the first version of NVIDIA's driver that publishes them
    driver_gate: str


@dataclass(frozen=True, kw_only=True)
class HandoverValue:
    """A value of a chart that says what the host has; words such as {kubelet_dir} stand for the spec's."""

    key: str
    value: bool | str
    why: str


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What the chart of another program has to know of a provisioned host."""

    chart: str  # and the version whose keys these are
    values: tuple[HandoverValue, ...]


@dataclass(frozen=True, kw_only=True)
class KubeKnowledge:
    """What is known of servers, images and charts."""

    support: Mapping[str, Support]
    apis: Mapping[str, tuple[ApiVersion, ...]]
    images: Mapping[str, str]
    tags: Mapping[str, str]  # component → pattern of the tags of its image that a refresh may choose from
    charts: Mapping[str, Chart]
    handovers: Mapping[str, Handover]
    memory_shares: MemoryShares
    labels: frozenset[str]  # that nodes are known to carry

    def api(self, kind: str, server: Server) -> str:
        """The best apiVersion of the kind that the server serves, "" when it serves none."""
        return next((row.api for row in self.apis[kind] if row.served(server)), "")


def parse_kube_knowledge(table: Table, support: Mapping[str, Support]) -> KubeKnowledge:
    """The parsed knowledge/kubernetes.toml and support.toml → KubeKnowledge."""
    return KubeKnowledge(
        support=support,
        apis={row["kind"]: tuple(map(_api, row["versions"])) for row in table["apis"]},
        images={row["component"]: row["image"] for row in table["images"]},
        tags={row["component"]: row["tags"] for row in table["images"] if "tags" in row},
        charts={row["name"]: _chart(row) for row in table["charts"]},
        handovers={
            row["name"]: Handover(chart=row["chart"], values=tuple(HandoverValue(**value) for value in row["values"]))
            for row in table["handover"]
        },
        memory_shares=_memory_shares(table["memory_shares"]),
        labels=frozenset(table["labels"]["known"].split()),
    )


def server_of(text: str) -> Server:
    """1.34 → Server; for the data, which is right."""
    major, minor = text.split(".")
    return Server(int(major), int(minor))


def _api(row: Table) -> ApiVersion:
    return ApiVersion(
        api=row["api"], since=server_of(row["since"]), until=server_of(row["until"]) if row["until"] else None
    )


def _memory_shares(row: Table) -> MemoryShares:
    stated = {key: row[key] for key in ("gate", "driver", "driver_gate")}
    return MemoryShares(**stated, since=server_of(row["since"]), on=server_of(row["on"]))


def _chart(row: Table) -> Chart:
    stated = {key: row[key] for key in ("name", "repository", "version")}
    return Chart(**stated, kube=server_of(row["kube"]))
