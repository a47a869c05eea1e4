"""The lab's own libnvidia-ml.so.1: nvml.c compiled against NVIDIA's real nvml.h, for NVIDIA's real programs to run on.

The header comes from PyPI (`nvidia-nvml-dev`, one version with its hash) into the lab's cache; neither it nor the
compiled library is part of gpunode.

    python -m gpunode.lab.nvml            build it, print its path
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from gpunode.core.errors import RefusedError
from gpunode.core.late import regex
from gpunode.lab import machine
from gpunode.lab.machine import Log

HEADER = "nvidia-nvml-dev==13.5.37"
HEADER_SHA256 = "7394fcbefa9ba537e8238cbb1caa4cd2db6bbfbff208d217a8a884947113ae6d"
COMPILERS = {"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
FLAGS = "-std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wno-deprecated-declarations -Wl,-soname,libnvidia-ml.so.1"
NAME = "libnvidia-ml.so.1"


def build(*, arch: str = "amd64", without: Sequence[str] = (), log: Log = print) -> Path:
    """The compiled library, in the lab's cache; built when it is not there.

    `without`: functions that it shall not have, as one of an older driver.  Raises RefusedError, with the reason, where
    it cannot be built: no compiler, or neither the header nor a package index at hand.
    """
    with machine.lock("nvml", log=log), as_file(files("gpunode.lab.nvml") / "nvml.c") as source:
        compiler = _compiler(arch)
        text = header(log=log)
        inputs = (source.read_text(), text, FLAGS, arch, *sorted(without), _REST)
        built = folder() / hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16] / NAME
        if not built.exists():
            log(f"compiling the lab's {NAME}")
            _compile(compiler, source, text, without, built)
        return built


def folder() -> Path:
    """Where the header and the libraries lie; may be deleted at any time."""
    return machine.places().cache / "nvml"


def header(*, log: Log = print) -> str:
    """NVIDIA's nvml.h; fetched from PyPI with a check of its hash when it is not in the cache.  Raises RefusedError."""
    [found] = unpacked(HEADER, HEADER_SHA256, log=log).rglob("nvml.h")
    return found.read_text(encoding="utf-8")


def unpacked(requirement: str, sha256: str, *, log: Log = print) -> Path:
    """The folder with that wheel's files, in the cache; fetched from PyPI when it is missing.  Raises RefusedError."""
    kept = folder() / requirement.replace("==", "-")
    if not kept.exists():
        log(f"fetching {requirement} from PyPI")
        with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as place:
            wheel = _download(requirement, sha256, Path(place))
            folder().mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(dir=folder(), prefix=f"{kept.name}-"))
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(new)
        try:
            new.rename(kept)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    return kept


def _compiler(arch: str) -> str:
    own: tuple[str, ...] = (
        ("gcc", "cc") if (arch, platform.machine()) in (("amd64", "x86_64"), ("arm64", "aarch64")) else ()
    )
    for name in (COMPILERS[arch], *own):
        if shutil.which(name):
            return name
    raise RefusedError(f"there is no C compiler for {arch}", expected=COMPILERS[arch], fix="apt-get install gcc")


def _download(requirement: str, sha256: str, place: Path) -> Path:
    wanted = place / "wanted.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    options = (
        "--quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --retries=1 --timeout=15"
    )
    where = ("--platform=manylinux2014_x86_64", "--platform=any", "--dest", str(place), "--requirement", str(wanted))
    command = (sys.executable, "-m", "pip", "download", *options.split(), *where)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = next(place.glob("*.whl"), None)
    if done.returncode or not found:
        raise RefusedError(
            f"{requirement} cannot be had from the package index: {(done.stderr.strip().splitlines() or ['?'])[-1]}",
            expected="pip, and an index that this machine reaches",
        )
    return found


# What nvml.c does not have of the header: the function is there, and says «Not Supported».
_REST = """\
int gpunode_missing(const char *name);
#define MISSING(name) __attribute__((visibility("default"))) int name(void) { return gpunode_missing(#name); }
"""
_DECLARED = regex(r"\bnvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(")
_DEFINED = regex(r"^(?:EXPORT nvmlReturn_t |NUMBER\(|WATTS\(|HOPPER\()(nvml\w+)\b", re.MULTILINE)


def _compile(compiler: str, source: Path, text: str, without: Sequence[str], built: Path) -> None:
    own = set(_DEFINED.findall(source.read_text()))
    missing = [name for name in dict.fromkeys(_DECLARED.findall(text)) if name not in own]
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as place:
        where = Path(place)
        (where / "nvml.h").write_text(text)
        (where / "rest.c").write_text(_REST + "".join(f"MISSING({name})\n" for name in missing))
        (where / "exports").write_text(f"{{ global: nvml*; local: {''.join(f'{n}; ' for n in without)}*; }};\n")
        new = where / NAME
        command = (compiler, *FLAGS.split(), f"-Wl,--version-script,{where}/exports", "-I", place)
        machine.run(*command, str(source), str(where / "rest.c"), "-o", str(new), "-ldl")
        shutil.copy(new, built.with_suffix(".new"))
        built.with_suffix(".new").replace(built)


# ---------------------------------------------------------------- to run a program on it, outside of nodes


def environment(library: Path, root: Path, driver: str) -> Mapping[str, str]:
    """What a program needs so that it takes that library, with the GPUs of `root`, as a driver of that version."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        "GPUNODE_LAB_ROOT": str(root),
        "GPUNODE_LAB_DRIVER": driver,
        "LC_ALL": "C.UTF-8",
    }
