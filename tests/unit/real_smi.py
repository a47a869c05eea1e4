"""NVIDIA's real nvidia-smi of many drivers on the lab's own NVML, without a node and without a GPU.

    def test_it(real_smi: RealSmi) -> None:
        smi = real_smi("550", gpus=("h100", "h100"), ill={0: {"remapped_rows.pending": "Yes"}})
        rc, text = smi("--query-gpu=index,name", "--format=csv,noheader")

The first use fetches the program from Debian's or Ubuntu's archive and builds the library, both kept in the lab's
cache.  Where that is not possible the test is passed over, with the reason.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.core.errors import GpunodeError
from gpunode.lab import hardware, nvml, vendor

FEW = ("535", "550", "580", "615")  # what `.ci/run` runs; `make test-all` runs all of ALL
ALL = tuple(branch for branch in vendor.SMI if branch != "340")
Ill = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True)
class Smi:
    """nvidia-smi of one driver on a machine of its own: `root` is that machine's /lab (docs/lab.md)."""

    program: vendor.Program
    library: Path
    root: Path

    def __call__(self, *words: str) -> tuple[int, str]:
        """(exit status, all that it printed)."""
        done = subprocess.run(
            (self.program.path, *words),
            env=dict(nvml.environment(self.library, self.root, self.program.version)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def makes_ill(self, ill: Ill) -> None:
        """From now on these GPUs (by index) say so: fields of standin-health."""
        write_health(self.root, ill)


RealSmi = Callable[..., Smi]


def branches(*some: str) -> list[object]:
    """Parameters of a test that runs on nvidia-smi of these branches (all): those of FEW in `.ci/run`."""
    extended = (pytest.mark.extended, pytest.mark.slow)
    return [pytest.param(one, marks=() if one in FEW else extended) for one in (some or ALL)]


def since(first: int) -> list[object]:
    """The same, of drivers from that branch on."""
    return branches(*(one for one in ALL if int(one) >= first))


def write_root(root: Path, gpus: Sequence[str], ill: Ill | None = None) -> Path:
    """Make `root` the /lab of a machine with these GPUs."""
    root.mkdir(parents=True, exist_ok=True)
    hardware.write_hardware(root, gpus, nouveau=False)
    write_health(root, ill or {})
    return root


def write_health(root: Path, ill: Ill) -> None:
    slots = [line.split("\t")[0] for line in (root / "standin-gpus").read_text().splitlines()]
    rows = (f"{slots[index]}\t{field}\t{value}\n" for index, one in ill.items() for field, value in one.items())
    (root / "standin-health").write_text("".join(rows))


@functools.cache
def library(without: tuple[str, ...] = ()) -> Path | GpunodeError:
    """The lab's NVML, or why it cannot be built."""
    try:
        return nvml.build(without=without)
    except GpunodeError as error:
        return error


@functools.cache
def _program(branch: str) -> vendor.Program | GpunodeError:
    try:
        return vendor.nvidia_smi(branch)
    except GpunodeError as error:
        return error


def needed_library(*without: str) -> Path:
    """The library; passes the test over where it cannot be built."""
    found = library(without)
    if isinstance(found, GpunodeError):
        pytest.skip(f"needs the lab's NVML: {found}")
    return found


def make(folder: Path) -> RealSmi:
    """What the fixture `real_smi` is."""
    count = iter(range(1000))

    def real_smi(branch: str, *, gpus: Sequence[str] = ("h100", "h100"), ill: Ill | None = None) -> Smi:
        built, program = needed_library(), _program(branch)
        if isinstance(program, GpunodeError):
            pytest.skip(f"needs NVIDIA's nvidia-smi: {program}")
        return Smi(program, built, write_root(folder / f"root-{next(count)}", gpus, ill))

    return real_smi
