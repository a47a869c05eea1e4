"""What is known of servers is what their own schemas say: which apiVersions they serve."""

from __future__ import annotations

import re
from importlib.resources import files

from kube_cases import KNOWN, SERVERS

from gpunode.core.knowledge.kubernetes import server_of
from gpunode.core.words import image, label_key

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


def test_words_of_the_knowledge_are_words_that_kubernetes_takes() -> None:
    assert [name for name in KNOWN.images.values() if image(name)] == []
    assert [key for key in KNOWN.labels if label_key(key)] == []
