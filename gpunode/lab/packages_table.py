"""packages.toml and families/*.toml: from rows to the files of packages; {names} in a row are values of its version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpunode.core.late import dataclass
from gpunode.lab.packages_deb import File
from gpunode.lab.packages_elf import SIGNED, module_elf

LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Real programs among the texts (packages_vendor.py), on x86_64: the fake NVML, and nvidia-smi by the driver's branch.
NVML, CUDA = "libnvidia-ml", "libcuda"
SMI = {branch: f"nvidia-smi@{branch}" for branch in ("535", "550", "580", "595")}
# The values of rows that differ by architecture, by Debian's name of it; `target` is CUDA's.
ARCHITECTURES = {
    "amd64": {"arch": "amd64", "machine": "x86_64", "target": "x86_64-linux"},
    "arm64": {"arch": "arm64", "machine": "aarch64", "target": "sbsa-linux"},
}


def texts_in(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def digest_of(words: str, texts: Mapping[str, bytes], *inputs: bytes) -> str:
    """A hash of all that a repository is built from."""
    digest = hashlib.sha256(words.encode())
    for part in (*inputs, *(name.encode() + b"\0" + data for name, data in texts.items())):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One package of one version of a set: what the table says of it, and the values its {names} stand for."""

    source: str
    distros: tuple[str, ...]  # that have it; empty: all of them
    package: Mapping[str, Any]
    values: Mapping[str, str]
    version: str
    first: bool  # of the set's versions

    @property
    def name(self) -> str:
        return str(self.package["name"]).format(**self.values)

    def is_for(self, distro: str) -> bool:
        """Whether the repository of that distribution has it; "" is the one that serves them all."""
        return not self.distros or distro in self.distros


def rows(table: Mapping[str, Any], distro: str = "") -> Iterator[Row]:
    """Every package of a table in each version of its set; with `distro`, those of that one or of all, and the values
    that the table has for it."""
    more = table["distros"][distro] if distro else {}
    for group in table["set"]:
        packages = table[group["packages-of"]] if "packages-of" in group else group["package"]
        for number, version in enumerate(group["versions"]):
            having = tuple(version.get("distros", (group["distro"],) if "distro" in group else ()))
            if distro and having and distro not in having:
                continue
            own = {name: value for name, value in version.items() if name != "distros"}
            values = {**ARCHITECTURES["amd64"], **more, **own}
            for package in packages:
                if distro not in package.get("distros", (distro,)):
                    continue
                if values.get("version") not in package.get("only", (values.get("version"),)):
                    continue
                branch = int(values.get("branch", 0))
                if package.get("since", branch) <= branch <= package.get("until", branch):
                    yield Row(
                        source=group["source"],
                        distros=having,
                        package=package,
                        values={**values, "unit": package.get("unit", ""), "dkms": package.get("dkms", "nvidia")},
                        version=package.get("version", group["package-version"]).format(**values),
                        first=number == 0,
                    )


def files_of(package: Mapping[str, Any], values: Mapping[str, str], texts: Mapping[str, bytes]) -> dict[str, File]:
    """The files of a package by path without leading slash: texts, links, libraries and kernel modules."""
    machine = values.get("machine", "x86_64")
    libraries = LIBRARIES.replace("x86_64", machine)
    found = {f"usr/share/doc/{package['name'].format(**values)}/README": File(data=b"A stand-in of the gpunode lab.\n")}
    real = texts if machine == "x86_64" else {}
    for path, text in package.get("files", {}).items():
        program = nvidia_smi(values["version"], real) if text == "nvidia-smi" else b""
        data = program or fill(texts[text.format(**values)], values)
        found[path.format(**values)] = File(data=data, mode=0o755 if data.startswith((b"#!", b"\x7fELF")) else 0o644)
    for path, target in package.get("links", {}).items():
        found[path.format(**values)] = File(target=target.format(**values))
    for soname in package.get("libraries", ()):
        library = f"{soname.partition('.so.')[0]}.so.{values['version']}"
        program = real.get(soname.partition(".so.")[0], b"")
        data = program or module_elf([f"description=gpunode lab stand-in {library}"], machine)
        found[f"{libraries}/{library}"] = File(data=data)
        found[f"{libraries}/{soname}"] = File(target=library)
    for path, flavour in package.get("drivers", {}).items():
        found |= driver_modules(path.format(**values), values, flavour)
    for module in package.get("modules", ()):
        data = _module(module, values["release"], machine)
        found[f"usr/lib/modules/{values['release']}/kernel/{module}.ko"] = File(data=data)
    return found


def nvidia_smi(version: str, texts: Mapping[str, bytes]) -> bytes:
    """NVIDIA's program for a driver of that version, of its branch or of the nearest; nothing where there is none."""
    wanted = int(version.partition(".")[0])
    return texts.get(SMI[min(SMI, key=lambda branch: abs(int(branch) - wanted))], b"")


def driver_modules(folder: str, values: Mapping[str, str], flavour: str) -> dict[str, File]:
    """NVIDIA's modules, built and signed; what the stand-ins' module.c makes is the same but for that."""
    needs = {"nvidia_uvm": "nvidia", "nvidia_modeset": "nvidia", "nvidia_drm": "nvidia_modeset,drm"}
    found = {}
    for name in ("nvidia", *needs):
        needed = needs.get(name, "")
        gpus = ("alias=pci:v000010DEd*sv*sd*bc03sc02i00*", "alias=pci:v000010DEd*sv*sd*bc03sc00i00*")
        info = [*(gpus if name == "nvidia" else ()), f"version={values['version']}", f"license={flavour}"]
        info += [f"depends={needed}", *([f"softdep=pre: {needed.replace(',', ' ')}"] if needed else [])]
        info += [f"name={name}", f"vermagic={values['release']} SMP preempt mod_unload modversions "]
        data = module_elf(info, values.get("machine", "x86_64")) + SIGNED
        found[f"{folder}/{name.replace('_', '-')}.ko"] = File(data=data)
    return found


def fill(text: bytes, values: Mapping[str, str]) -> bytes:
    """The text with each @name@ that has a value replaced by it."""
    for name, value in values.items():
        text = text.replace(f"@{name}@".encode(), value.encode())
    return text


def _module(path: str, release: str, machine: str) -> bytes:
    name = path.rpartition("/")[2]
    aliases = {"nouveau": ["alias=pci:v000010DEd*sv*sd*bc03sc*i*"]}.get(name, [])
    needs = {"nouveau": "drm", "br_netfilter": "bridge"}.get(name, "")
    # depmod knows dependencies from symbols, which these modules lack: hence the softdep
    order = [f"softdep=pre: {needs}"] if needs else []
    info = [
        *aliases,
        *order,
        "license=GPL",
        "description=gpunode lab stand-in",
        f"depends={needs}",
        "intree=Y",
        f"name={name}",
        f"vermagic={release} SMP preempt mod_unload modversions ",
    ]
    return module_elf(info, machine) + SIGNED
