"""Stand-ins of NVIDIA's self-extracting installers: a shell script with an archive behind its last line."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpunode.lab.packages_deb import EPOCH
from gpunode.lab.packages_elf import module_elf
from gpunode.lab.packages_table import CUDA, NVML, fill, nvidia_smi

FOLDER = "runfile"
_DRIVERS = ("570.211.01", "580.178.04")  # 470 would be proprietary alone
_TOOLKITS = ({"version": "12.8.2", "mm": "12.8", "driver": "570.211.01", "nvcc": "12.8.93"},)


def write_runfiles(directory: Path, texts: Mapping[str, bytes]) -> None:
    """Write `directory`/runfile/NAME with NAME.sha256sum beside it, as NVIDIA's server has them."""
    folder = directory / FOLDER
    folder.mkdir(parents=True)
    (folder / "login.html").write_text("<!DOCTYPE html>\n<title>What a proxy answers (gpunode lab stand-in)</title>\n")
    for name, data in _all(texts):
        (folder / name).write_bytes(data)
        (folder / f"{name}.sha256sum").write_text(f"{hashlib.sha256(data).hexdigest()}  {name}\n")


def _all(texts: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for version in _DRIVERS:
        yield f"NVIDIA-Linux-x86_64-{version}.run", driver_runfile(version, texts)
    for row in _TOOLKITS:
        yield f"cuda_{row['version']}_{row['driver']}_linux.run", cuda_runfile(row, texts)


def driver_runfile(version: str, texts: Mapping[str, bytes]) -> bytes:
    """The installer of a driver: DKMS sources of both flavours, a library, nvidia-smi, and what takes all of it off."""
    values = {"version": version, "dkms": "nvidia", "modules": "open" if version >= "560" else "proprietary"}
    names = {
        **{name: name for name in ("nvidia-installer", "nvidia-uninstall", "nvidia-smi", "nvidia-modprobe")},
        **{"dkms.conf": "dkms.conf", "Makefile": "dkms-Makefile", "module.c": "dkms-module.c"},
        **{"open.mk": "dkms-open.mk", "proprietary.mk": "dkms-proprietary.mk"},
    }
    files = {path: fill(texts[name], values) for path, name in names.items()}
    if program := nvidia_smi(version, texts):
        files |= {"nvidia-smi": program, "libnvidia-ml": texts[NVML], "libcuda": texts[CUDA]}
    files["library"] = module_elf([f"description=gpunode lab stand-in of driver {version}"])
    return _self_extracting(f"NVIDIA-Linux-x86_64-{version}.run", "nvidia-installer", files, texts)


def cuda_runfile(row: Mapping[str, str], texts: Mapping[str, bytes]) -> bytes:
    """The installer of a toolkit, without a driver."""
    names = {
        **{name: name for name in ("cuda-installer", "cuda-uninstaller", "nvcc")},
        "version.json": "cuda-version.json",
    }
    files = {path: fill(texts[name], row) for path, name in names.items()}
    return _self_extracting(f"cuda_{row['version']}_linux.run", "cuda-installer", files, texts)


def _self_extracting(name: str, installer: str, files: Mapping[str, bytes], texts: Mapping[str, bytes]) -> bytes:
    lines = str(texts["runfile-header"].count(b"\n"))
    head = fill(texts["runfile-header"], {"name": name, "installer": installer, "lines": lines})
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), EPOCH, 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(member, io.BytesIO(data))
    return head + gzip.compress(raw.getvalue(), mtime=EPOCH)
