"""Charts for a bundle: from a repository with an index, and from a registry (OCI)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import urlencode, urljoin

import yaml

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge.kubernetes import Chart
from gpunode.edge.bundle.store import Challenge, Web

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"  # https://helm.sh/docs/topics/registries/


def fetch_chart(chart: Chart, web: Web) -> bytes:
    """The chart's archive, compared with the digest that its repository or registry names.  Raises GpunodeError."""
    return _of_registry(chart, web) if chart.repository.startswith("oci://") else _of_repository(chart, web)


def _of_repository(chart: Chart, web: Web) -> bytes:
    base = f"{chart.repository.rstrip('/')}/"
    index = yaml.safe_load(web.read(f"{base}index.yaml") or b"{}")
    rows = (index.get("entries") or {}).get(chart.name, [])
    row = next((row for row in rows if str(row.get("version", "")).lstrip("v") == chart.version.lstrip("v")), None)
    data = web.read(urljoin(base, row["urls"][0])) if row else None
    if row is None or data is None:
        raise _missing(chart)
    return _compared(data, str(row.get("digest", "")), row["urls"][0])


def _of_registry(chart: Chart, web: Web) -> bytes:
    """By the OCI Distribution Specification: the manifest of the tag, then the layer that is the chart."""
    host, _, path = chart.repository.removeprefix("oci://").partition("/")
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"  # as docker has it
    base = f"{scheme}://{host}/v2/{path.rstrip('/')}/{chart.name}"
    answer = _asked(web, f"{base}/manifests/{chart.version.replace('+', '_')}", MANIFEST)
    layers = json.loads(answer).get("layers", ()) if answer else ()
    digest = next((str(layer["digest"]) for layer in layers if layer.get("mediaType") == CONTENT), "")
    data = _asked(web, f"{base}/blobs/{digest}", "*/*") if digest else None
    if data is None:
        raise _missing(chart)
    return _compared(data, digest, f"{chart.repository}/{chart.name}")


def _asked(web: Web, url: str, accept: str) -> bytes | None:
    """What a registry answers, with the token that it gives to anybody where it wants one."""
    try:
        return web.read(url, headers={"Accept": accept})
    except Challenge as asked:
        words = dict(re.findall(r'(\w+)="([^"]*)"', asked.header))
        if "realm" not in words:
            raise
        reported: Any = json.loads(web.read(f"{words.pop('realm')}?{urlencode(words)}") or b"{}")
        token = reported.get("token") or reported.get("access_token", "")
        return web.read(url, headers={"Accept": accept, "Authorization": f"Bearer {token}"})


def _compared(data: bytes, digest: str, where: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
        raise GpunodeError(f"{where} is not what the index of its repository says", fix="try again later")
    return data


def _missing(chart: Chart) -> GpunodeError:
    return GpunodeError(
        f"{chart.repository} has no {chart.name} {chart.version}", fix="look at the network and the proxy"
    )
