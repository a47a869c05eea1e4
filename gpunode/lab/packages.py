"""Signed apt repositories that stand in for NVIDIA's and for the distribution's kernels: built from packages.toml."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from gpunode.lab import packages_deb
from gpunode.lab.packages_deb import Deb, File, SigningKey
from gpunode.lab.packages_elf import module_elf

LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Where each source's packages go, by distribution: the paths of NVIDIA's own servers.
FOLDERS = {
    ("nvidia-cuda", "debian:12"): "cuda/repos/debian12/x86_64",
    ("nvidia-cuda", "debian:13"): "cuda/repos/debian13/x86_64",
    ("nvidia-container-toolkit", ""): "libnvidia-container/stable/deb/amd64",
    ("kernels", "debian:12"): "kernels/debian12",
    ("kernels", "debian:13"): "kernels/debian13",
}
ORIGINS = {
    "nvidia-cuda": "NVIDIA",
    "nvidia-container-toolkit": "https://nvidia.github.io/libnvidia-container",
    "kernels": "gpunode-lab",
}


@dataclass(frozen=True, kw_only=True)
class RepositorySource:
    """One repository: `path` and `key` are relative to the directory, `distro` "" serves all of them."""

    name: str
    distro: str
    path: str
    key: str
    fingerprint: str
    suite: str = "/"
    components: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RepositoryInfo:
    """What stands in the directory: its sources, and by distro the packages that a new node has from the start."""

    directory: Path
    sources: tuple[RepositorySource, ...]
    base: Mapping[str, tuple[str, ...]]  # distro → .deb files relative to the directory

    def base_packages(self, distro: str) -> tuple[Path, ...]:
        """The .deb files of a new node's first kernel, in the order dpkg is to get them."""
        return tuple(self.directory / name for name in self.base[distro])


def build_repository(directory: Path, *, arch: str = "amd64", log: Callable[[str], None] = print) -> RepositoryInfo:
    """Build all repositories in `directory`; at once done when it already holds what would be built.

    Needs gpg.  The keys are made for this build, and their secret halves thrown away.  Raises GpunodeError.
    """
    with as_file(files("gpunode.lab")) as lab:
        texts = _texts(lab / "standins/packages")
        table = (lab / "packages.toml").read_bytes()
        digest = _digest(arch, table, texts, *(path.read_bytes() for path in sorted(lab.glob("packages*.py"))))
    stamp = directory / "built.json"
    if stamp.exists() and (built := json.loads(stamp.read_text()))["digest"] == digest:
        return _info(directory, built)
    log("building the lab's package repositories")
    _empty(directory)
    sources, base = _write_all(directory, list(_sets(tomllib.loads(table.decode()))), texts, arch)
    built = {"digest": digest, "sources": [asdict(source) for source in sources], "base": base}
    stamp.write_text(json.dumps(built, indent=1))
    return _info(directory, built)


def _empty(directory: Path) -> None:
    """Remove what is in the directory, not the directory: the lab's server may have it mounted."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "built.json").unlink(missing_ok=True)
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _info(directory: Path, built: Mapping[str, Any]) -> RepositoryInfo:
    sources = tuple(RepositorySource(**{**row, "components": tuple(row["components"])}) for row in built["sources"])
    return RepositoryInfo(
        directory=directory, sources=sources, base={distro: tuple(names) for distro, names in built["base"].items()}
    )


def _texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _digest(arch: str, table: bytes, texts: Mapping[str, bytes], *code: bytes) -> str:
    digest = hashlib.sha256(arch.encode())
    for part in (table, *code, *(name.encode() + b"\0" + data for name, data in texts.items())):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


# ---------------------------------------------------------------- from the table to packages


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One package of one version of a set: what the table says of it, and the values its {names} stand for."""

    source: str
    distro: str
    package: Mapping[str, Any]
    values: Mapping[str, str]
    version: str
    first: bool  # of the set's versions


def _sets(table: Mapping[str, Any]) -> Iterator[_Row]:
    for group in table["set"]:
        packages = table[group["packages-of"]] if "packages-of" in group else group["package"]
        for number, values in enumerate(group["versions"]):
            for package in packages:
                branch = int(values.get("branch", 0))
                if package.get("since", branch) <= branch <= package.get("until", branch):
                    yield _Row(
                        source=group["source"],
                        distro=group.get("distro", ""),
                        package=package,
                        values={**values, "unit": package.get("unit", "")},
                        version=group["package-version"].format(**values),
                        first=number == 0,
                    )


def _deb(row: _Row, texts: Mapping[str, bytes], arch: str) -> Deb:
    package, values = row.package, row.values
    relations = {
        name.capitalize(): ", ".join(package.get(name, ())).format(**values)
        for name in ("depends", "recommends", "conflicts", "breaks", "provides")
    }
    replaces = {"Replaces": relations["Conflicts"]} if relations["Conflicts"] else {}
    fields = {
        "Package": package["name"].format(**values),
        "Version": row.version,
        "Architecture": arch,
        "Maintainer": "gpunode lab <gpunode@localhost>",
        "Section": "kernel" if row.source == "kernels" else "non-free/utils",
        "Priority": "optional",
        **relations,
        **replaces,
        "Description": f"{package['summary'].format(**values)} (stand-in)\n"
        " A stand-in of the gpunode lab: it has the name, version, dependencies and paths of the real package, and\n"
        " nothing of what that does.",
    }
    scripts = {name: _fill(texts[text], values).decode() for name, text in package.get("scripts", {}).items()}
    return Deb(fields=fields, files=_files(package, values, texts), scripts=scripts)


def _files(package: Mapping[str, Any], values: Mapping[str, str], texts: Mapping[str, bytes]) -> dict[str, File]:
    found = {f"usr/share/doc/{package['name'].format(**values)}/README": File(data=b"A stand-in of the gpunode lab.\n")}
    for path, text in package.get("files", {}).items():
        data = _fill(texts[text], values)
        found[path.format(**values)] = File(data=data, mode=0o755 if data.startswith(b"#!") else 0o644)
    for path, target in package.get("links", {}).items():
        found[path.format(**values)] = File(target=target.format(**values))
    for soname in package.get("libraries", ()):
        library = f"{soname.partition('.so.')[0]}.so.{values['version']}"
        found[f"{LIBRARIES}/{library}"] = File(data=module_elf([f"description=gpunode lab stand-in {library}"]))
        found[f"{LIBRARIES}/{soname}"] = File(target=library)
    for module in package.get("modules", ()):
        found[f"usr/lib/modules/{values['release']}/kernel/{module}.ko"] = File(data=_module(module, values["release"]))
    return found


def _fill(text: bytes, values: Mapping[str, str]) -> bytes:
    for name, value in values.items():
        text = text.replace(f"@{name}@".encode(), value.encode())
    return text


def _module(path: str, release: str) -> bytes:
    name = path.rpartition("/")[2]
    aliases = {"nouveau": ["alias=pci:v000010DEd*sv*sd*bc03sc*i*"]}.get(name, [])
    needs = {"nouveau": "drm", "br_netfilter": "bridge"}.get(name, "")
    # depmod knows dependencies from symbols, which these modules lack: hence the softdep
    order = [f"softdep=pre: {needs}"] if needs else []
    return module_elf(
        [
            *aliases,
            *order,
            "license=GPL",
            "description=gpunode lab stand-in",
            f"depends={needs}",
            "intree=Y",
            f"name={name}",
            f"vermagic={release} SMP preempt mod_unload modversions ",
        ]
    )


# ---------------------------------------------------------------- from packages to repositories


def _write_all(
    directory: Path, rows: list[_Row], texts: Mapping[str, bytes], arch: str
) -> tuple[list[RepositorySource], dict[str, list[str]]]:
    sources, base = [], {}
    keys: dict[str, SigningKey] = {}
    with packages_deb.gpg_home() as home:
        for name in ORIGINS:
            keys[name] = packages_deb.make_key(Path(home), f"gpunode lab stand-in for {name}")
        packages_deb.public_keys(directory / "keys", keys)
        for (name, distro), path in FOLDERS.items():
            chosen = [row for row in rows if row.source == name and row.distro in ("", distro)]
            debs = [_deb(row, texts, arch) for row in chosen]
            packages_deb.write_flat_repository(directory / path, debs, origin=ORIGINS[name], key=keys[name], arch=arch)
            sources.append(
                RepositorySource(
                    name=name, distro=distro, path=path, key=f"keys/{name}.asc", fingerprint=keys[name].fingerprint
                )
            )
            if name == "kernels":
                base[distro] = [f"{path}/{file}" for file in _base(chosen, debs)]
        packages_deb.stop_agent(Path(home))
    return sources, base


def _base(rows: list[_Row], debs: list[Deb]) -> list[str]:
    """File names of what a new node has: initramfs-tools, then the first image and its metapackage."""
    pairs = list(zip(rows, debs, strict=True))
    wanted = ("initramfs-tools", "linux-image-{release}", "linux-image-amd64")
    return [next(deb.file_name for row, deb in pairs if row.first and row.package["name"] == name) for name in wanted]
