"""Package repositories as files on the node: one sources file and one key, named by Signed-By."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2

from gpunode.core.model import NodeFacts, Repository

# Where each repository has been set up by others; such a file beside ours makes apt fail with «Conflicting values set
# for option Signed-By» (NVIDIA/cuda-repo-management issue 4, NVIDIA/nvidia-docker issue 1631).
RIVALS: Mapping[str, tuple[str, ...]] = {
    "nvidia-cuda": ("developer.download.nvidia.com/compute/cuda/repos",),
    "nvidia-container-toolkit": (
        "nvidia.github.io/libnvidia-container",
        "nvidia.github.io/nvidia-docker",
        "nvidia.github.io/nvidia-container-runtime",
    ),
}


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A small text file we own.  `text` None: it must not be there, or (with `repository`) it is that one's key."""

    path: str
    text: str | None
    mode: str = "0644"
    repository: Repository | None = None


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    compiled: jinja2.Template = jinja2.Template(template, keep_trailing_newline=True)
    return compiled


def render(template: str, **values: Any) -> str:
    """The text that a jinja2 template gives; each is compiled once, which takes far longer than to fill it in."""
    return _compiled(template).render(**values)


def key_path(repository: Repository) -> str:
    """Where the repository's armored key lies; apt reads armored keys by the ending .asc."""
    return f"/usr/share/keyrings/gpunode-{repository.name}.asc"


def sources_path(name: str) -> str:
    """Where the repository of that name is set up."""
    return f"/etc/apt/sources.list.d/gpunode-{name}.sources"


def source_files(repository: Repository, facts: NodeFacts, templates: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """The key and the deb822 file of a repository (man sources.list(5), DEB822-STYLE FORMAT)."""
    text = render(
        templates["apt.sources.j2"],
        repository=repository,
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(facts.arch, facts.arch),
        key=key_path(repository),
    )
    key = SourceFile(path=key_path(repository), text=None, repository=repository)
    return (key, SourceFile(path=sources_path(repository.name), text=text))


def rival_files(repository: Repository, facts: NodeFacts) -> tuple[str, ...]:
    """Files that set up the same repository in another way and name nothing else; they go."""
    ours = sources_path(repository.name)
    places = (*RIVALS.get(repository.name, ()), re.sub(r"^\w+://", "", repository.url).rstrip("/"))
    found = []
    for path, file in facts.files.items():
        if not path.startswith("/etc/apt/sources.list.d/") or path == ours or not file.data:
            continue
        urls = re.findall(r"^[^#\n]*?\b\w+://([^\s]+)", file.data.decode("utf-8", "replace"), re.M)
        if urls and all(url.startswith(places) for url in urls):
            found.append(path)
    return tuple(sorted(found))
