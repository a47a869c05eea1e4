"""Registries of images and charts, by the OCI Distribution Specification: what is read without an account."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

from gpunode.core.errors import GpunodeError
from gpunode.edge.bundle.store import Challenge, Web

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def address_of(name: str) -> str:
    """Where a registry answers for a repository of it.

    >>> address_of("registry.k8s.io/nfd/charts/node-feature-discovery")
    'https://registry.k8s.io/v2/nfd/charts/node-feature-discovery'
    """
    host, _, path = name.removeprefix("oci://").partition("/")
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"  # as docker has it
    return f"{scheme}://{host}/v2/{path.rstrip('/')}"


def read(web: Web, url: str, accept: str = "*/*") -> bytes | None:
    """What a registry answers, with the token that it gives to anybody where it wants one."""
    try:
        return web.read(url, headers={"Accept": accept})
    except Challenge as asked:
        words = dict(re.findall(r'\b(\w+)="([^"]*)"', asked.header))
        if "realm" not in words:
            raise
        reported: Any = json.loads(web.read(f"{words.pop('realm')}?{urlencode(words)}") or b"{}")
        token = reported.get("token") or reported.get("access_token", "")
        return web.read(url, headers={"Accept": accept, "Authorization": f"Bearer {token}"})


def read_object(web: Web, url: str, accept: str = "*/*") -> dict[str, Any] | None:
    """The same for a JSON object; None where there is nothing.  Raises GpunodeError for another form."""
    data = read(web, url, accept)
    if data is None:
        return None
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise GpunodeError(f"{url} is no JSON object", expected="an answer by the OCI Distribution Specification")
    return answer
