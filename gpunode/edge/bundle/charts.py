"""Charts for a bundle: from a repository with an index, and from a registry (OCI)."""

from __future__ import annotations

import hashlib
from urllib.parse import urljoin

import yaml

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge.kubernetes import Chart
from gpunode.edge.bundle import registry
from gpunode.edge.bundle.store import Web

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
    """The manifest of the tag, then the layer that is the chart."""
    base = f"{registry.address_of(chart.repository)}/{chart.name}"
    manifest = registry.read_object(web, f"{base}/manifests/{chart.version.replace('+', '_')}", registry.MANIFEST)
    layers = manifest.get("layers", ()) if manifest else ()
    digest = next((str(layer["digest"]) for layer in layers if layer.get("mediaType") == CONTENT), "")
    data = registry.read(web, f"{base}/blobs/{digest}") if digest else None
    if data is None:
        raise _missing(chart)
    return _compared(data, digest, f"{chart.repository}/{chart.name}")


def _compared(data: bytes, digest: str, where: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
        raise GpunodeError(f"{where} is not what the index of its repository says", fix="try again later")
    return data


def _missing(chart: Chart) -> GpunodeError:
    return GpunodeError(
        f"{chart.repository} has no {chart.name} {chart.version}", fix="look at the network and the proxy"
    )
