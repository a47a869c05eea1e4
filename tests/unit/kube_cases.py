"""The cases of tests/cases/kube: a spec, with hosts where there are several pools, and the servers it can be had on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from gpunode.core.spec import merge_spec, parse_spec
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import Rendered, cluster_of, render

KNOWN = load_kube_knowledge()
OLDEST, NEWEST = (
    int(text.partition(".")[2]) for text in (KNOWN.support["kubernetes"].oldest, KNOWN.support["kubernetes"].newest)
)
SERVERS = [f"1.{minor}" for minor in range(OLDEST, NEWEST + 1)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`server` is the one whose files are recorded."""

    folder: Path
    spec: Any
    hosts: dict[str, Any]
    server: str
    first: str

    @property
    def servers(self) -> list[str]:
        return SERVERS[SERVERS.index(self.first) :]

    def render(self, server: str = "", **kubernetes: Any) -> Rendered:
        specs = {
            host: parse_spec(merge_spec(merge_spec(self.spec, over), {"kubernetes": kubernetes}))
            for host, over in self.hosts.items()
        }
        return render(cluster_of(specs, server or self.server, KNOWN))


def case_of(folder: Path) -> Case:
    data = yaml.safe_load((folder / "case.yml").read_text(encoding="utf-8"))
    return Case(
        folder=folder,
        spec=data["spec"],
        hosts=data.get("hosts", {"": {}}),
        server=data.get("server", "1.36"),
        first=data.get("servers", {}).get("from", SERVERS[0]),
    )


CASES = [case_of(path.parent) for path in sorted((Path(__file__).parents[1] / "cases/kube").glob("*/case.yml"))]


def complaint(found: Any, server: str) -> str:
    """What the server's JSON schema, without room for unknown fields, says against an object; "" for nothing."""
    try:
        kubernetes_validate.validate(found, server, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{found['kind']} {found['metadata']['name']} on {server}: {list(error.path)} {error.message}"
    except kubernetes_validate.SchemaNotFoundError:
        return f"{server} does not serve {found['apiVersion']} {found['kind']}"
    return ""
