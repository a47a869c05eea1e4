"""What the stub packages hold of real programs: NVIDIA's nvidia-smi, the fake NVML that it asks, and a fake libcuda.

They stand beside the texts of standins/packages, by a key of their own.  Without a network or a compiler there are
none, and the scripts of that folder stay in their place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

from gpunode.core.errors import GpunodeError
from gpunode.lab import machine, nvml, vendor
from gpunode.lab.machine import Log
from gpunode.lab.packages_table import CUDA, NVML, SMI
from gpunode.lab.packages_ubuntu import stanzas


def programs(*, log: Log) -> dict[str, bytes]:
    """The programs by key, fetched and compiled when they are not here; after a word to `log` none but libcuda."""
    found: dict[str, bytes] = {}
    try:
        found = {CUDA: _library("cuda.c", CUDA)}
        built = {NVML: nvml.build(log=log).read_bytes()}
        smi = {key: vendor.nvidia_smi(branch, log=log).path.read_bytes() for branch, key in SMI.items()}
        return found | built | smi
    except (GpunodeError, OSError) as error:
        log(f"nodes get a script in place of NVIDIA's nvidia-smi: {error}")
        return found


CONFIGURATION = "libnvidia-cfg"
PLACE = "usr/local/lib/gpunode-lab"  # in a node


def overlays(programs: Mapping[str, bytes], *, log: Log) -> dict[str, bytes]:
    """The libraries that take the place of real ones that ask the hardware, by their paths in a node."""
    if NVML not in programs:
        return {}
    libraries = {name: programs[name] for name in (NVML, CUDA)} | {CONFIGURATION: _library("nvcfg.c", CONFIGURATION)}
    return {f"{PLACE}/{name}.so": data for name, data in libraries.items()}


def _library(source: str, name: str) -> bytes:
    """The lab's own library of that name, compiled.  Raises GpunodeError or OSError."""
    with as_file(files("gpunode.lab") / source) as path, tempfile.TemporaryDirectory() as place:
        built = Path(place) / name
        flags = ("-O2", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{name}.so.1")
        machine.run("gcc", *flags, str(path), "-o", str(built))
        return built.read_bytes()


def canonical(version: str, *, log: Log) -> dict[str, Path]:
    """NVIDIA's user space as Canonical has it for that Ubuntu: files by SHA-256, fetched when they are not here.

    Those that the archive no longer has are left out, after a word to `log`.
    """
    excerpt = (files("gpunode.lab") / f"ubuntu/{version}.packages").read_text()
    wanted = {s["SHA256"]: s for s in stanzas(excerpt) if "SHA256" in s}
    folder = vendor.folder() / "canonical"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {sha256: folder / s["Filename"].rpartition("/")[2] for sha256, s in wanted.items()}
    missing = {sha256: s for sha256, s in wanted.items() if not paths[sha256].exists()}
    if missing:
        size = sum(int(s["Size"]) for s in missing.values()) // 2**20
        log(f"fetching NVIDIA's user space for ubuntu:{version} from Ubuntu's archive ({size} MiB, once)")
    lacking = [s["Package"] for sha256, s in missing.items() if not _fetch(s["Filename"], sha256, paths[sha256])]
    if lacking:
        log(f"ubuntu:{version} gets stubs of what Ubuntu's archive does not give: {' '.join(lacking)}")
    return {sha256: path for sha256, path in paths.items() if path.exists()}


def _fetch(name: str, sha256: str, path: Path) -> bool:
    """Whether the archive gave that file, which apt compares with the hash."""
    archive = machine.archive()
    with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as place:
        settings = Path(place) / "apt.conf"
        settings.write_text(f'{archive.settings}\nAPT::Sandbox::User "root";\n')
        new = path.with_name(f".{path.name}.new")
        helper = ("/usr/lib/apt/apt-helper", "-c", str(settings), "download-file")
        done = machine.run(*helper, f"{archive.ubuntu}/{name}", str(new), f"SHA256:{sha256}", check=False)
        if not done.returncode:
            new.replace(path)
        return not done.returncode
