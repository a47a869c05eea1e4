"""The lab's script nvidia-smi says what NVIDIA's real one says on the same GPUs, to every question of gpunode.

The real ones run on the lab's own libnvidia-ml; skipped where they cannot be had.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gpunode.core.errors import RefusedError
from gpunode.edge.load import load_questions
from gpunode.lab import nvml, vendor
from gpunode.lab.hardware import write_hardware
from gpunode.lab.packages_table import SMI

LAB = Path(str(files("gpunode.lab")))
QUESTIONS = load_questions()
FIRST, SECOND = "0000:17:00.0", "0000:1e:00.0"
CSV = "--format=csv,noheader,nounits"
HEALTH = {
    "healthy": (),
    "remapped": ((FIRST, "remapped_rows.pending", "Yes"), (SECOND, "remapped_rows.failure", "Yes")),
    "fabric": ((FIRST, "fabric.state", "In Progress"), (FIRST, "fabric.status", "N/A")),
    "reset": ((SECOND, "reset", "Yes"),),
    "lost": ((SECOND, "lost", "Yes"),),
    "link": ((FIRST, "nvlink.3", "down"),),
    "links": ((SECOND, "nvlink", "down"),),
    "ecc": ((FIRST, "ecc.errors.uncorrected.volatile.total", "7"),),
}
Run = Callable[..., tuple[int, str]]
Both = tuple[int, Run, Run, Path]


@pytest.fixture(params=SMI)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    """The branch, the real program and the script on the same two H100, an RTX 3090 and a T4, and their folder."""
    if os.uname().machine != "x86_64" or not shutil.which("gcc"):
        pytest.skip("needs a PC with a C compiler")
    try:
        real = vendor.nvidia_smi(request.param, log=lambda _: None)
        library = nvml.build(log=lambda _: None)
    except RefusedError as error:
        pytest.skip(f"NVIDIA's own programs cannot be had here: {error.what}")
    root = tmp_path / "lab"
    write_hardware(root, ["h100", "h100", "rtx3090", "t4"], nouveau=False)
    module = root / "sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text(f"{real.version}\n")
    driver = root / "proc/driver/nvidia"
    for minor, slot in enumerate(sorted(path.name for path in (root / "sys/bus/pci/devices").iterdir())):
        (driver / "gpus" / slot).mkdir(parents=True)
        (driver / "gpus" / slot / "information").write_text(f"Device Minor: \t {minor}\n")
    (driver / "version").write_text("NVRM version\n")
    text = (LAB / "standins/packages/nvidia-smi").read_text().replace("@version@", real.version)
    for place in ("/sys/", "/proc/driver", "/lab/"):
        text = re.sub(rf"(?<![\w$}}/]){place}", f"{root}{place.removeprefix('/lab')}", text)
    text = text.replace("/usr/local/lib/gpunode-lab", str(LAB / "standins/node/usr/local/lib/gpunode-lab"))
    script = tmp_path / "nvidia-smi"
    script.write_text(text)
    script.chmod(0o755)

    def runs(program: Path) -> Run:
        environment = dict(nvml.environment(library, root, real.version))

        def run(*words: str) -> tuple[int, str]:
            done = subprocess.run(
                [program, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            return done.returncode, done.stdout.rstrip()

        return run

    return int(request.param), runs(real.path), runs(script), root


def parts(said: str) -> list[str]:
    """The values of each line; of a table of profiles GPU, name, ID and how many are free."""
    lines = said.splitlines()
    rows = [line.split()[1:6] for line in lines if line.startswith("|") and "/" in line and " MIG " in line]
    plain = [line.split(", ") for line in lines if not line.startswith(("|", "+-"))]
    return [value for row in (*plain, *rows) for value in row]


@pytest.mark.parametrize("health", HEALTH)
def test_both_give_the_same_answer(health: str, both: Both) -> None:
    branch, real, script, root = both
    (root / "standin-health").write_text("".join("\t".join(row) + "\n" for row in HEALTH[health]))
    fields = [name for name, field in QUESTIONS.gpu.items() if field.since <= branch]
    words = [
        (f"--query-gpu={','.join(fields)}", CSV),
        (f"--query-remapped-rows={','.join(QUESTIONS.remapped)}", CSV),
        ("--query-gpu=index,memory.total,utilization.gpu", "--format=csv"),
        ("-L",),
        ("nvlink", "--status"),
        ("mig", "-lgi"),
        ("mig", "-lci"),
        ("mig", "-lgip"),
        ("mig", "-lgipp"),
    ]
    for one in words:
        (status, said), (true_status, truth) = script(*one), real(*one)
        differ = [pair for pair in zip(parts(said), parts(truth), strict=False) if pair[0] != pair[1]]
        assert differ == [] and (status, len(parts(said))) == (true_status, len(parts(truth))), one[0][:20]
    for run in (script, real):
        status, said = run("topo", "-m")
        assert (status, [line for line in said.split("\n\n")[0].splitlines()[1:] if line]) != (0, []), said


def test_neither_knows_a_field_of_a_newer_driver(both: Both) -> None:
    branch, real, script, _root = both
    for name in (name for name, field in QUESTIONS.gpu.items() if field.since > branch):
        assert (script(f"--query-gpu={name}", CSV)[0], real(f"--query-gpu={name}", CSV)[0]) == (2, 2), name
