"""What goes into a bundle beside packages: wheels of gpunode itself, charts, and the list of images of a cluster."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge_kube import Chart
from gpunode.core.kube import Rendered
from gpunode.edge.bundle.store import Web

IMAGES = "images.txt"


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Files by their path in the bundle; what is named without being there."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wheels(requirements: Sequence[str], proxy: str) -> dict[str, bytes]:
    """Wheels of these requirements with all that they need, for this machine's Python.  Raises GpunodeError."""
    if not requirements:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
        command += [f"--proxy={proxy}"] if proxy else []
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise GpunodeError(
                f"the wheels of {' '.join(requirements)} cannot be had: {said[0]}",
                fix="name a version that the index has, or a wheel or folder of gpunode: --wheels ./dist/gpunode-….whl",
            )
        return {f"wheels/{file.name}": file.read_bytes() for file in sorted(Path(folder).iterdir())}


def cluster_extras(rendered: Rendered, web: Web) -> Extras:
    """The charts that a cluster needs, compared with their repository's index, and the images of its objects."""
    files: dict[str, bytes] = {}
    notes = []
    for release in rendered.releases:
        if release.chart.repository.startswith("oci://"):
            notes.append(
                f"not in the bundle: helm pull {release.chart.repository}/{release.chart.name} "
                f"--version {release.chart.version}"
            )
            continue
        name = f"charts/{release.chart.name}-{release.chart.version}.tgz"
        files[name] = _chart(release.chart, web)
    images = tuple(sorted({image for document in rendered.objects for image in _images(document)}))
    if images:
        files[IMAGES] = "".join(f"{image}\n" for image in images).encode()
    return Extras(files=files, images=images, notes=tuple(notes))


def _images(value: Any) -> Iterator[str]:
    """Every image that a container of an object names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("containers", "initContainers"):
                yield from (one["image"] for one in inner if "image" in one)
            yield from _images(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _images(inner)


def _chart(chart: Chart, web: Web) -> bytes:
    """The chart's archive, as the index of its repository has it.  Raises GpunodeError."""
    import hashlib

    import yaml

    base = f"{chart.repository.rstrip('/')}/"
    index = yaml.safe_load(web.read(f"{base}index.yaml") or b"{}")
    rows = (index.get("entries") or {}).get(chart.name, [])
    row = next((row for row in rows if str(row.get("version", "")).lstrip("v") == chart.version.lstrip("v")), None)
    data = web.read(urljoin(base, row["urls"][0])) if row else None
    if row is None or data is None:
        raise GpunodeError(f"{base} has no {chart.name} {chart.version}", fix="look at the network and the proxy")
    if hashlib.sha256(data).hexdigest() != row.get("digest", "").removeprefix("sha256:"):
        raise GpunodeError(f"{row['urls'][0]} is not what the index of its repository says", fix="try again later")
    return data
