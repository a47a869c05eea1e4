"""Image archives (as `docker save` writes them) made from programs of this machine, without a registry."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpunode.lab import machine


def write_archive(
    path: Path,
    names: Sequence[str],
    contents: Mapping[str, Path | str],
    *,
    links: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Write an image of one layer with an empty /tmp.  `contents`: path in it → a file of this machine, or a script.

    `links`: path in the image → what the symbolic link points to.

    Programs bring the libraries that ldd names.  The same input gives the same bytes.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        scratch = tarfile.TarInfo("tmp")  # as every base image has it
        scratch.type, scratch.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(scratch)
        for name, content in sorted(_with_libraries(contents).items()):
            data = content.encode() if isinstance(content, str) else content.read_bytes()
            info = tarfile.TarInfo(name.lstrip("/"))
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
        for name, target in sorted((links or {}).items()):
            info = tarfile.TarInfo(name.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    blob = layer.getvalue()
    settings = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(entrypoint) or None,
                "Env": [f"{k}={v}" for k, v in settings.items()],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(blob).hexdigest()}"]},
        }
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{digest}.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with tarfile.open(new, "w") as tar:
        for name, data in (
            (f"{digest}.json", config),
            ("layer.tar", blob),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    new.replace(path)


def _with_libraries(contents: Mapping[str, Path | str]) -> dict[str, Path | str]:
    found = dict(contents)
    for content in contents.values():
        if isinstance(content, Path):
            found |= {str(library): library for library in libraries(content)}
    return found


def libraries(program: Path) -> list[Path]:
    """The shared libraries of a program, and its loader, by ldd; none for a static one."""
    said = machine.run("ldd", str(program), check=False).stdout
    return [Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)]
