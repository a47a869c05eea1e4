"""What goes into a bundle beside packages: wheels of gpunode itself, charts, and the list of images of a cluster."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import yaml

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge.kubernetes import Chart
from gpunode.core.late import dataclass, field
from gpunode.core.untrusted import load_yaml
from gpunode.edge.bundle import registry
from gpunode.edge.bundle.cluster import ClusterNeeds
from gpunode.edge.bundle.store import Web

IMAGES = "images.txt"
SYNC = "images.yml"


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Files by their path in the bundle; images are named without being there."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    images: tuple[str, ...] = ()


def wheels(requirements: Sequence[str], proxy: str) -> dict[str, bytes]:
    """Wheels of these requirements with all that they need, for this machine's Python.  Raises GpunodeError."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
        environment = {**os.environ, **({"PIP_PROXY": proxy} if proxy else {})}  # not argv, which all users see
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            stated = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise GpunodeError(
                f"the wheels of {' '.join(requirements)} are not available: {stated[0]}",
                fix="name a version that the index has, or a wheel or folder of gpunode: --wheels ./dist/gpunode-….whl",
            )
        return {f"wheels/{file.name}": file.read_bytes() for file in sorted(Path(folder).iterdir())}


def cluster_extras(needs: ClusterNeeds, more: Sequence[str], web: Web) -> Extras:
    """The charts that a cluster needs, and its images with `more` as a list and in skopeo's form."""
    files = {f"charts/{chart.name}-{chart.version}.tgz": fetch_chart(chart, web) for chart in needs.charts}
    images = tuple(sorted({*needs.images, *more}))
    files[IMAGES] = "".join(f"{image}\n" for image in images).encode()
    files[SYNC] = yaml.safe_dump(by_registry(images)).encode()
    return Extras(files=files, images=images)


def by_registry(images: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The list as `skopeo sync --src yaml` reads it: {registry: {"images": {repository: [tag or sha256:…]}}}.

    The form is that of skopeo-sync(1).

    >>> by_registry(["nvcr.io/nvidia/k8s-device-plugin:v1", "busybox"])["nvcr.io"]
    {'images': {'nvidia/k8s-device-plugin': ['v1']}}
    """
    found: dict[str, dict[str, Any]] = {}
    for image in images:
        registry, slash, rest = image.partition("/")
        if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
            registry, rest = "docker.io", image if slash else f"library/{image}"
        named, _, digest = rest.partition("@")
        name, _, tag = named.partition(":")
        tags = found.setdefault(registry, {"images": {}})["images"].setdefault(name, [])
        tags.append(digest or tag or "latest")
    return found


# ---------------------------------------------------------------- charts

CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"  # https://helm.sh/docs/topics/registries/


def fetch_chart(chart: Chart, web: Web) -> bytes:
    """The chart's archive, compared with the digest that its repository or registry names.  Raises GpunodeError."""
    read = _of_registry if chart.repository.startswith("oci://") else _of_repository
    data, digest, where = read(chart, web)
    if data is None:
        raise GpunodeError(
            f"{chart.repository} has no {chart.name} {chart.version}", fix="look at the network and the proxy"
        )
    if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
        raise GpunodeError(f"{where} is not what the index of its repository says", fix="run it again later")
    return data


def _of_repository(chart: Chart, web: Web) -> tuple[bytes | None, str, str]:
    base = f"{chart.repository.rstrip('/')}/"
    index = load_yaml(web.read(f"{base}index.yaml") or b"{}", f"{base}index.yaml")
    rows = (index.get("entries") or {}).get(chart.name, [])
    row = next((row for row in rows if str(row.get("version", "")).lstrip("v") == chart.version.lstrip("v")), None)
    if row is None:
        return None, "", ""
    return web.read(urljoin(base, row["urls"][0])), str(row.get("digest", "")), row["urls"][0]


def _of_registry(chart: Chart, web: Web) -> tuple[bytes | None, str, str]:
    """The manifest of the tag, then the layer that is the chart."""
    base = f"{registry.address_of(chart.repository)}/{chart.name}"
    manifest = registry.read_object(web, f"{base}/manifests/{chart.version.replace('+', '_')}", registry.MANIFEST)
    layers = manifest.get("layers", ()) if manifest else ()
    digest = next((str(layer["digest"]) for layer in layers if layer.get("mediaType") == CONTENT), "")
    data = registry.read(web, f"{base}/blobs/{digest}") if digest else None
    return data, digest, f"{chart.repository}/{chart.name}"
