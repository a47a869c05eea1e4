"""NVIDIA's own programs, out of Debian's and Ubuntu's archives: they judge what the lab and gpunode say of GPUs.

apt itself fetches them, with its check of the archive's signature and of every hash, in a folder of its own: this
machine's sources and package lists stay as they are.  Everything lies below the lab's cache; nothing of NVIDIA's is
part of gpunode.

    python -m gpunode.lab.vendor             what there is, and what of it is here
    python -m gpunode.lab.vendor 550 615     fetch these; prints their paths
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, cast

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import dataclass
from gpunode.lab import images, machine
from gpunode.lab.machine import Log


@dataclass(frozen=True)
class Source:
    """A part of an archive: `debian`, `sid`, `non-free`."""

    vendor: str
    suite: str
    component: str

    def __str__(self) -> str:
        return f"{self.vendor} {self.suite} {self.component}"


SID, BOOKWORM, TRIXIE = (Source("debian", suite, "non-free") for suite in ("sid", "bookworm", "trixie"))
JAMMY = Source("ubuntu", "jammy", "restricted")  # as 22.04 came out; what came after made other branches of these
JAMMY_UPDATES, NOBLE_UPDATES = (Source("ubuntu", f"{name}-updates", "restricted") for name in ("jammy", "noble"))
NOBLE_MULTIVERSE = Source("ubuntu", "noble-updates", "multiverse")

# branch → where its nvidia-smi is, and in which package
SMI: dict[str, tuple[Source, str]] = {
    "340": (SID, "nvidia-legacy-340xx-smi"),
    "390": (SID, "nvidia-legacy-390xx-smi"),
    "418": (SID, "nvidia-tesla-418-smi"),
    "450": (SID, "nvidia-tesla-450-smi"),
    "460": (SID, "nvidia-tesla-460-smi"),
    "470": (SID, "nvidia-tesla-470-smi"),
    "510": (JAMMY, "nvidia-utils-510-server"),
    "525": (SID, "nvidia-tesla-smi"),
    "535": (BOOKWORM, "nvidia-smi"),
    "545": (JAMMY_UPDATES, "nvidia-utils-545"),
    "550": (TRIXIE, "nvidia-smi"),
    "580": (NOBLE_UPDATES, "nvidia-utils-580-server"),
    "595": (NOBLE_MULTIVERSE, "nvidia-utils-595-server"),
    "615": (NOBLE_MULTIVERSE, "nvidia-utils-615-server"),
}
# branch → where its nvidia-cuda-mps-control is, and in which package
MPS: dict[str, tuple[Source, str]] = {
    "390": (JAMMY_UPDATES, "nvidia-compute-utils-390"),
    "418": (JAMMY_UPDATES, "nvidia-compute-utils-418-server"),
    "450": (JAMMY, "nvidia-compute-utils-450-server"),
    "470": (NOBLE_UPDATES, "nvidia-compute-utils-470"),
    "510": (JAMMY, "nvidia-compute-utils-510"),
    "535": (BOOKWORM, "nvidia-cuda-mps"),
    "545": (JAMMY_UPDATES, "nvidia-compute-utils-545"),
    "550": (TRIXIE, "nvidia-cuda-mps"),
    "580": (NOBLE_UPDATES, "nvidia-compute-utils-580-server"),
    "595": (NOBLE_MULTIVERSE, "nvidia-compute-utils-595-server"),
    "615": (NOBLE_MULTIVERSE, "nvidia-compute-utils-615-server"),
}


# branch → where its libcuda is, and in which package
CUDA: dict[str, tuple[Source, str]] = {
    "535": (BOOKWORM, "libcuda1"),
    "550": (TRIXIE, "libcuda1"),
    "580": (NOBLE_UPDATES, "libnvidia-compute-580-server"),
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of NVIDIA's that lies here, and the version of the driver that it is of."""

    path: Path
    version: str


def folder() -> Path:
    """Where it all lies; may be deleted at any time."""
    return machine.places().cache / "vendor"


def nvidia_smi(branch: str, *, log: Log = print) -> Program:
    """The real nvidia-smi of that driver branch; fetched when it is not here.

    Raises InputError for a branch that no archive has, RefusedError where the archive cannot be reached.
    """
    return _program("nvidia-smi", "smi", SMI, branch, log)


def mps_control(branch: str, *, log: Log = print) -> Program:
    """The real nvidia-cuda-mps-control, in the same way."""
    return _program("nvidia-cuda-mps-control", "mps", MPS, branch, log)


def libcuda(branch: str, *, log: Log = print) -> Program:
    """The real libcuda.so.VERSION, in the same way."""
    return _program("libcuda.so.*.*", "cuda", CUDA, branch, log)


def _program(name: str, kind: str, table: Mapping[str, tuple[Source, str]], branch: str, log: Log) -> Program:
    if branch not in table:
        raise InputError(f"{name} of branch {branch!r}", expected=f"one of {', '.join(table)}")
    source, package = table[branch]
    home = folder() / kind / branch
    if not (home / "version").exists():
        with machine.lock("vendor", log=log):
            if not (home / "version").exists():
                [deb] = debs(source, [package], log=log)
                _unpack(deb, name, home)
    return Program(path=next(home.glob(name)), version=(home / "version").read_text().strip())


def here(branch: str) -> bool:
    """Whether that nvidia-smi has been fetched."""
    return (folder() / "smi" / branch / "version").exists()


def debs(source: Source, packages: Sequence[str], *, log: Log = print) -> list[Path]:
    """The newest of these packages in that part of the archive, as files below the cache, without dependencies.

    Raises RefusedError where the archive cannot be reached, or does not have one.
    """
    home = folder() / "-".join((source.vendor, source.suite, source.component))
    kept = home / "debs"
    kept.mkdir(parents=True, exist_ok=True)
    missing = [name for name in packages if not _newest(kept, name)]
    if missing:
        log(f"fetching {' '.join(missing)} ({source})")
        with as_file(files("gpunode.lab") / "ubuntu/archive-key.asc") as key:
            _download(source, missing, home, str(key) if source.vendor == "ubuntu" else images.KEYRINGS["debian"])
    return [cast(Path, _newest(kept, name)) for name in packages]


def _newest(kept: Path, package: str) -> Path | None:
    return max(kept.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime, default=None)


def _download(source: Source, packages: Sequence[str], home: Path, keyring: str) -> None:
    """apt fetches the index and the packages, in `home`, with no other source and nothing installed."""
    if not shutil.which("apt-get"):
        raise RefusedError("there is no apt-get on this machine", expected="Debian or Ubuntu")
    archive = machine.archive()
    url = archive.ubuntu if source.vendor == "ubuntu" else archive.main
    for name in ("lists/partial", "archives/partial", "etc"):
        (home / name).mkdir(parents=True, exist_ok=True)
    signed = f"arch=amd64 signed-by={keyring}"
    (home / "sources.list").write_text(f"deb [{signed}] {url} {source.suite} {source.component}\n")
    (home / "status").write_text("")
    settings = SETTINGS.format(home=home, arch="amd64") + 'Dir::Cache { pkgcache ""; srcpkgcache ""; };'
    (home / "apt.conf").write_text(f"{archive.settings}\n{settings}\n")
    try:
        for words in (("update",), ("download", *packages)):
            _apt(home, *words)
    except GpunodeError as error:
        raise RefusedError(f"{source} of {url}: {error}", expected="an archive that this machine reaches") from error


SETTINGS = """\
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Dir::State "{home}";
Dir::State::lists "{home}/lists";
Dir::State::status "{home}/status";
Dir::Cache "{home}";
Dir::Cache::archives "{home}/archives";
Dir::Etc "{home}/etc";
Dir::Etc::sourcelist "{home}/sources.list";
Dir::Etc::sourceparts "-";
"""


def _apt(home: Path, *words: str) -> None:
    environment = {**os.environ, "APT_CONFIG": str(home / "apt.conf"), "LC_ALL": "C.UTF-8"}
    command = ("apt-get", "--quiet=2", *words)
    done = subprocess.run(command, cwd=home / "debs", env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise machine.command_failed(command, done.returncode, done.stderr or done.stdout)


def _unpack(deb: Path, program: str, home: Path) -> None:
    """Put the program of that name or pattern into `home`, and `version`, which is the last to be written."""
    stated = machine.run("dpkg-deb", "--field", str(deb), "Version").stdout.strip()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as whole:
        subprocess.run(("dpkg-deb", "--fsys-tarfile", str(deb)), stdout=whole, check=True)
        whole.seek(0)
        with tarfile.open(fileobj=whole) as tar:
            found = next((m for m in tar if m.isfile() and fnmatch(m.name.rpartition("/")[2], program)), None)
            if not found:
                raise GpunodeError(f"{deb.name} has no {program}")
            name = found.name.rpartition("/")[2]
            new = home / f".{name}.new"
            new.write_bytes(cast(IO[bytes], tar.extractfile(found)).read())
    new.chmod(0o755)
    new.replace(home / name)
    (home / "version").write_text(f"{stated.partition(':')[2] or stated}".partition("-")[0] + "\n")


def main(words: Sequence[str]) -> int:
    """List what there is, or fetch the branches that are named (`all`: every one)."""
    for branch in SMI if "all" in words else words:
        program = nvidia_smi(branch, log=lambda line: print(line, file=sys.stderr))
        print(f"{program.path}\t{program.version}")
    if not words:
        for branch, (source, package) in SMI.items():
            print(f"{branch}\t{package}\t{source}\t{nvidia_smi(branch).version if here(branch) else 'not fetched'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
