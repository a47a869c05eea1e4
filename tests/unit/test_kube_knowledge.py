"""What is known of servers is what their own schemas say: which apiVersions they serve, and which are gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

from kube_cases import KNOWN, SERVERS

from gpunode.core.knowledge.kubernetes import Server, server_of
from gpunode.core.kube.checks.words import image, label_key
from gpunode.edge.load import load_old_forms

OLD = load_old_forms()


SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"


def serves(server: str, api: str, kind: str) -> bool:
    """Whether there is a schema: KIND-GROUP-VERSION.json, the group without its domain."""
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    return (SCHEMAS / f"v{server}.0-local-strict" / f"{kind.lower()}-{name}.json").is_file()


def test_there_are_schemas_of_every_server() -> None:
    assert [server for server in SERVERS if not serves(server, "apps/v1", "DaemonSet")] == []


def test_an_api_is_known_exactly_where_a_server_has_it() -> None:
    wrong = [
        (server, row.api, kind)
        for kind, rows in KNOWN.apis.items()
        for row in rows
        for server in SERVERS
        if row.served(server_of(server)) != serves(server, row.api, kind)
    ]
    assert wrong == []


def moves() -> Iterator[tuple[str, str, Server | None, Server, str]]:
    """Kind, old apiVersion, where it is gone, from where on the new one serves, and the new one."""
    for row in OLD.moved:
        for kind in sorted(row.kinds):
            for old in sorted(row.old):
                yield kind, old, row.gone, row.since, row.to


def test_what_is_gone_is_gone_and_its_successor_serves() -> None:
    wrong = []
    for kind, old, gone, since, new in moves():
        for server in SERVERS:
            if gone and server_of(server) >= gone and serves(server, old, kind):
                wrong.append(f"{server} still serves {old} {kind}")
            if server_of(server) >= since and not serves(server, new, kind):
                wrong.append(f"{server} does not serve {new} {kind}")
    assert wrong == []


def test_what_has_ended_is_served_no_more() -> None:
    wrong = [
        (server, api, kind)
        for row in OLD.ended
        for kind in row.kinds
        for api in row.apis
        for server in SERVERS
        if server_of(server) >= row.gone and serves(server, api, kind)
    ]
    assert wrong == []


def test_words_of_the_knowledge_are_words_that_kubernetes_takes() -> None:
    assert [name for name in KNOWN.images.values() if image(name)] == []
    assert [key for key in KNOWN.labels if label_key(key)] == []
    assert [row.new for row in (*OLD.labels, *OLD.resources) if label_key(row.new)] == []
    assert {row.new for row in OLD.superseded} <= set(KNOWN.images)
