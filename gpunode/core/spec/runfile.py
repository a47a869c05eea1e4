"""NVIDIA's self-extracting installers in gpunode.yml: `driver.runfile` and `cuda.runfiles`."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.errors import InputError
from gpunode.core.grammar import URL
from gpunode.core.late import dataclass
from gpunode.core.spec.option import check_places, check_text, option


@dataclass(frozen=True, kw_only=True)
class RunfileSpec:
    """Where a runfile comes from.  In `url` and `path`, {version} and {arch} stand for what is installed."""

    url: str = option("", "URL of a mirror, {version} and {arch} filled in; empty means NVIDIA's own server")
    path: str = option("", "the file on the machine that runs gpunode, copied to the nodes, in place of a URL")
    sha256: str = option("", "SHA-256 of the file; empty takes the one that NVIDIA's server publishes for it")


def check_runfiles(driver: RunfileSpec, cuda: Mapping[str, RunfileSpec], versions: tuple[str, ...]) -> None:
    """Raises InputError on what cannot be meant."""
    _check(driver, "driver.runfile")
    for version, runfile in cuda.items():
        if version not in versions:
            raise InputError.of(
                "cuda.runfiles",
                f"has {version!r}",
                expected=f"one of cuda.versions ({', '.join(versions) or 'none'}), in quotes",
            )
        _check(runfile, f"cuda.runfiles.{version}")


def _check(runfile: RunfileSpec, key: str) -> None:
    if runfile.url and runfile.path:
        raise InputError.of(key, "has both url and path", expected="one of them")
    if not URL.fits(runfile.url):
        raise InputError.of(f"{key}.url", f"is {runfile.url!r}", expected="a URL that begins with http:// or https://")
    for name in ("url", "path"):
        check_places(f"{key}.{name}", getattr(runfile, name), ("version", "arch"))
    check_text(f"{key}.sha256", runfile.sha256, r"([0-9A-Fa-f]{64})?", "64 hex digits")
