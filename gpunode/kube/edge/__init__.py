"""Rendered files into a folder, and pools from an inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.plain import mapping
from gpunode.core.secrets import seal_spec
from gpunode.core.spec import Spec, merge_spec, parse_spec
from gpunode.edge.isolate import isolated
from gpunode.kube.core.render.files import HEADER
from gpunode.kube.core.selector import parse_selector


def specs_of(spec_data: Any, inventory: Sequence[str], limit: str = "") -> dict[str, Spec]:
    """Host → its spec; without an inventory one spec, under the name ""."""
    data = _pools_filled(spec_data)
    if not inventory:
        return {"": _spec(data, "gpunode.yml")}
    from gpunode.edge.ansible.inventory import load_inventory

    hosts = load_inventory(inventory, limit=limit)
    return {h.name: _spec(merge_spec(data, h.spec), f"gpunode_spec of {h.name}") for h in hosts}


def provisioned_gpus(hosts: Iterable[str]) -> dict[str, int]:
    """Host → GPUs for containers that the last run that ended well found, of those that this machine has run on."""
    from gpunode.edge.fleet.runs import last_good

    known = isolated("", lambda: last_good(hosts))
    found = {} if isinstance(known, GpunodeError) else known
    return {
        host: sum(gpu.get("driver") != "vfio-pci" for gpu in state.get("gpus") or ())
        for host, (_, state) in found.items()
    }


def with_pool(spec_data: Any, selector: str) -> Any:
    """The file with its one pool on the nodes that a label selector chooses.  Raises InputError."""
    parse_selector(selector, "--nodes")
    spec = _spec(spec_data, "gpunode.yml").kubernetes
    if spec.pools:
        raise InputError(
            f"--nodes {selector!r} is for one pool, and gpunode.yml has kubernetes.pools ({', '.join(spec.pools)})",
            fix="leave out --nodes: each pool there has a selector of its own",
        )
    return merge_spec(spec_data or {}, {"kubernetes": {"pools": {spec.pool: {"nodes": selector}}}})


def _pools_filled(data: Any) -> Any:
    """A pool by label without `sharing` has the file's, whatever the groups of an inventory have."""
    kubernetes, pools = mapping(data, "kubernetes"), mapping(data, "kubernetes", "pools")
    if not pools or not data.get("sharing"):
        return data
    filled = {name: {"sharing": data["sharing"], **p} if isinstance(p, Mapping) else p for name, p in pools.items()}
    return {**data, "kubernetes": {**kubernetes, "pools": filled}}


def _spec(data: Any, where: str) -> Spec:
    """The spec without its secrets, which no object of a cluster has."""
    return parse_spec(seal_spec(data, where=where)[0], where=where)


def write_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files; those of an earlier run that are not among them go.  Gives back the paths that changed.

    Raises RefusedError before anything is written when a file of that name is somebody else's.
    """
    ours = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and _is_ours(path)}
    for name in files:
        if (folder / name).exists() and name not in ours:
            raise RefusedError(
                f"{folder / name} exists, and gpunode did not write it",
                expected="a file that gpunode kube render wrote, or none",
                fix="move it away, or choose another folder",
            )
    changed = sorted(ours - set(files))
    try:
        for name in changed:
            (folder / name).unlink()
        for name, text in files.items():
            path = folder / name
            if path.exists() and path.read_text(encoding="utf-8") == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
            changed.append(name)
    except OSError as error:
        raise InputError(f"cannot write {error.filename}: {error.strerror}", fix="choose another folder") from error
    return changed


def _is_ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return HEADER in (file.readline(), file.readline())
    except (OSError, UnicodeDecodeError):
        return False
