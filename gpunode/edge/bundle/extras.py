"""What goes into a bundle beside packages: wheels of gpunode itself, charts, and the list of images of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gpunode.core.errors import GpunodeError
from gpunode.core.kube import Rendered
from gpunode.core.kube.images import by_registry, images_of
from gpunode.edge.bundle.charts import fetch_chart
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
    if not requirements:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
        environment = {**os.environ, **({"PIP_PROXY": proxy} if proxy else {})}  # not argv, which all users see
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            stated = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise GpunodeError(
                f"the wheels of {' '.join(requirements)} cannot be had: {stated[0]}",
                fix="name a version that the index has, or a wheel or folder of gpunode: --wheels ./dist/gpunode-….whl",
            )
        return {f"wheels/{file.name}": file.read_bytes() for file in sorted(Path(folder).iterdir())}


def cluster_extras(rendered: Rendered, more: Sequence[str], web: Web) -> Extras:
    """The charts that a cluster needs, and its images with `more` as a list and in skopeo's form."""
    files = {
        f"charts/{release.chart.name}-{release.chart.version}.tgz": fetch_chart(release.chart, web)
        for release in rendered.releases
    }
    images = tuple(sorted({*images_of(rendered), *more}))
    files[IMAGES] = "".join(f"{image}\n" for image in images).encode()
    files[SYNC] = yaml.safe_dump(by_registry(images)).encode()
    return Extras(files=files, images=images)
