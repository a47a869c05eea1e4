"""gpunode.pyz: gpunode and all packages that it needs, for several Pythons and machines, as one file.

A target is a Python and a machine, cp313-x86_64 say; each has a folder as pip would fill it.  A file that several
targets have alike is packed once: files that the same targets have are a layer, which is a zip in the file.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = 28  # 2.28: Debian 10, Ubuntu 20.04, RHEL 8 and newer
PROGRAMS_OF = ("gpunode", "ansible-core")
LEFT_OUT = re.compile(
    r"ansible_test/|.*/__pycache__/|bin/|.*\.dist-info/(RECORD|direct_url\.json|INSTALLER|REQUESTED)$"
)


def targets() -> list[tuple[str, str]]:
    return [(python, machine) for python in PYTHONS for machine in MACHINES]


def name_of(python: str, machine: str) -> str:
    return f"cp{python.replace('.', '')}-{machine}"


# ---------------------------------------------------------------- a folder for each target


def filled(wheel: Path, folder: Path) -> dict[str, Path]:
    """Target → its folder, with the wheel and what it needs, by pip's download for another Python and machine."""
    sites = {}
    for python, machine in targets():
        name = name_of(python, machine)
        wheels = folder / f"{name}-wheels"
        download(python, machine, needs(wheel, python), wheels)
        site = sites[name] = folder / name
        for one in (wheel, *sorted(wheels.glob("*.whl"))):
            with zipfile.ZipFile(one) as packed:
                if any(".data/" in file for file in packed.namelist()):
                    sys.exit(f"{one.name} has files that are not for site-packages: gpunode.pyz cannot hold them")
                packed.extractall(site)
        check_whole(site, python, machine)
    return sites


def needs(wheel: Path, python: str) -> list[str]:
    """The wheel's requirements for that Python: pip asks the markers of the Python that it runs in."""
    with zipfile.ZipFile(wheel) as packed:
        [metadata] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        lines = packed.read(metadata).decode().partition("\n\n")[0].splitlines()
    wanted = [Requirement(line.partition(":")[2]) for line in lines if line.startswith("Requires-Dist:")]
    return [_bare(one) for one in wanted if _wanted(one, python, "x86_64")]


def _bare(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _wanted(requirement: Requirement, python: str, machine: str) -> bool:
    given = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine, "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(given)


def download(python: str, machine: str, requirements: list[str], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, "--dest", str(target)]
    for minor in range(GLIBC, 16, -1):
        command += ["--platform", f"manylinux_2_{minor}_{machine}"]
    done = subprocess.run(
        [*command, "--platform", f"manylinux2014_{machine}", *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"pip download for Python {python} on {machine}: {done.stderr.strip()[-2000:]}")


def check_whole(site: Path, python: str, machine: str) -> None:
    """Ends where a package lacks what it says that it needs: pip asked the markers of another Python."""
    there = {canonicalize_name(one.name): one for one in distributions(path=[str(site)])}
    lacking = [
        f"{one.name} needs {requirement}"
        for one in there.values()
        for requirement in map(Requirement, one.requires or ())
        if _wanted(requirement, python, machine)
        and not _fits(there.get(canonicalize_name(requirement.name)), requirement)
    ]
    if lacking:
        sys.exit(f"gpunode.pyz for Python {python} on {machine}: {'; '.join(lacking)}")


def _fits(found: Distribution | None, requirement: Requirement) -> bool:
    return found is not None and requirement.specifier.contains(found.version, prereleases=True)


# ---------------------------------------------------------------- one file of them


def pack(sites: Mapping[str, Path], file: Path, epoch: int, level: int = 9) -> None:
    """The same folders give the same bytes."""
    holders: dict[tuple[str, str], list[str]] = {}  # file and digest → targets
    paths: dict[tuple[str, str], Path] = {}
    for target, site in sorted(sites.items()):
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if path.is_file() and not LEFT_OUT.match(name):
                key = (name, hashlib.sha256(path.read_bytes()).hexdigest())
                holders.setdefault(key, []).append(target)
                paths[key] = path
    groups: dict[tuple[str, ...], dict[str, Path]] = {}
    for (name, digest), having in holders.items():
        groups.setdefault(tuple(having), {})[name] = paths[name, digest]
    ordered = sorted(groups.items(), key=lambda group: (-len(group[0]), group[0]))
    layers = {f"layer{n}.zip": (having, _layer(files, epoch, level)) for n, (having, files) in enumerate(ordered)}
    build = hashlib.sha256(b"".join(data for _, data in layers.values())).hexdigest()
    start = _start(build, {name: having for name, (having, _) in layers.items()}, dict(_programs(sites)))
    with file.open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(stream, "w") as outer:
            _add(outer, "__main__.py", start.encode(), epoch, level)
            _add(outer, "packages.json", _packages(sites).encode(), epoch, level)
            for name, (_, data) in layers.items():
                _add(outer, name, data, epoch, 0)  # packed already
    file.chmod(0o755)


def _layer(files: Mapping[str, Path], epoch: int, level: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as layer:
        for name, path in sorted(files.items()):
            _add(layer, name, path.read_bytes(), epoch, level)
    return packed.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes, epoch: int, level: int) -> None:
    entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
    entry.external_attr, entry.create_system = 0o100644 << 16, 3
    entry.compress_type = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    archive.writestr(entry, data, compresslevel=level)


def _start(build: str, layers: Mapping[str, tuple[str, ...]], programs: Mapping[str, str]) -> str:
    text = Path(__file__).with_name("__main__.py").read_text(encoding="utf-8")
    given = {'BUILD = ""': f"BUILD = {build!r}", "LAYERS = {}": f"LAYERS = {layers!r}"}
    for empty, full in {**given, "PROGRAMS = {}": f"PROGRAMS = {programs!r}"}.items():
        assert text.count(empty) == 1, empty
        text = text.replace(empty, full)
    return text


def _programs(sites: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    site = next(iter(sites.values()))
    for package in distributions(path=[str(site)]):
        if canonicalize_name(package.name) in PROGRAMS_OF:
            parser = configparser.ConfigParser(delimiters="=", interpolation=None)
            parser.read_string(package.read_text("entry_points.txt") or "")
            yield from sorted((name, entry) for name, entry in parser["console_scripts"].items() if "test" not in name)


def plain(name: str) -> str:
    return str(canonicalize_name(name))


def packages(site: Path) -> dict[str, str]:
    found = {plain(one.name): one.version for one in distributions(path=[str(site)])}
    return dict(sorted(found.items()))


def _packages(sites: Mapping[str, Path]) -> str:
    return json.dumps({target: packages(site) for target, site in sorted(sites.items())}, indent=1) + "\n"
