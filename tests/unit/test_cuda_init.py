"""CUDA on a node: the program of node/smoke/cuda.py on the lab's libcuda, and on NVIDIA's own as far as it goes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_smoke_sh import fake_program, smoked

from gpunode.core.errors import GpunodeError
from gpunode.core.model import Check
from gpunode.edge.doctor import load_faults, smoke_checks
from gpunode.lab import vendor
from gpunode.lab.packages_vendor import _library
from gpunode.node import part

PROGRAM = part("cuda.py").read_text()
SYSTEM = "/usr/bin/python3"
pytestmark = pytest.mark.skipif(not shutil.which("gcc") or not Path(SYSTEM).exists(), reason="needs gcc and python3")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "libcuda.so.1").write_bytes(_library("cuda.c", "libcuda"))
    return folder


def ran(gpus: str, text: str = PROGRAM, python: str = SYSTEM, **env: str) -> str:
    sent = f"import base64; exec(base64.b64decode({b64encode(text.encode())!r}))"  # as smoke.sh has it
    command = (python, "-I", "-S", "-c", sent, gpus)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.removeprefix("gpunode-smoke-cuda:").strip()


TWO = "GPU 0=GPU-a;GPU 1=GPU-b"


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("", "passed 2"),
        ("cuInit 999 all", "failed GPU 0, GPU 1: cuInit: CUDA_ERROR_UNKNOWN (999)"),
        ("cuCtxCreate 46 GPU-b", "failed GPU 1: cuCtxCreate: CUDA_ERROR_DEVICE_UNAVAILABLE (46)"),
        ("cuMemAlloc 2 all", "full GPU 0, GPU 1: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        (
            "cuMemAlloc 2 GPU-a\ncuInit 802 GPU-b",
            "failed GPU 0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2); GPU 1: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)",
        ),
        ("cuLaunchKernel 4242 GPU-a", "failed GPU 0: cuLaunchKernel: error (4242)"),
        ("cuInit -1 GPU-a", "failed GPU 0: CUDA does not answer within 1 s"),
        ("cuCtxCreate -11 GPU-a", "failed GPU 0: a program that starts CUDA was killed"),
    ],
)
def test_each_gpu_is_named_with_the_call_that_failed(faults: str, said: str, library: Path, tmp_path: Path) -> None:
    (tmp_path / "cuda").write_text(f"{faults}\n")
    text = PROGRAM.replace("LIMIT = 50", "LIMIT = 1")
    assert ran(TWO, text, LD_LIBRARY_PATH=str(library), GPUNODE_LAB_ROOT=str(tmp_path)) == said


def test_a_kernel_that_computes_wrong_fails(library: Path) -> None:
    text = PROGRAM.replace("3 * (7 + n) + n for", "3 * (7 + n) + n + (n == 5) for")
    assert ran(TWO, text, LD_LIBRARY_PATH=str(library)) == (
        "failed GPU 0, GPU 1: the kernel's result is wrong in 1 of 1024 places"
    )


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.13"])
def test_it_runs_on_the_pythons_of_old_and_new_nodes(version: str, library: Path) -> None:
    own = Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3")
    found = next(own, None) or shutil.which(f"python{version}")
    if not found or subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode:  # a shim of pyenv's
        pytest.skip(f"no Python {version}")
    assert ran(TWO, python=str(found), LD_LIBRARY_PATH=str(library)) == "passed 2"


def test_without_libcuda_the_loaders_own_words_are_said() -> None:
    assert ran("GPU 0=GPU-a") == (
        "failed GPU 0: libcuda.so.1: cannot open shared object file: No such file or directory"
    )


@pytest.mark.slow
@pytest.mark.parametrize("branch", vendor.CUDA)
def test_nvidias_own_libcuda_is_started_and_says_that_there_is_no_gpu(branch: str, tmp_path: Path) -> None:
    """To its end on a real GPU only; here cuInit alone, and all functions that are called are there."""
    try:
        real = vendor.libcuda(branch)
    except GpunodeError as error:
        pytest.skip(str(error))
    shutil.copy(real.path, tmp_path / "libcuda.so.1")
    assert ran("GPU 0=GPU-a", LD_LIBRARY_PATH=str(tmp_path)) in (
        "failed GPU 0: cuInit: CUDA_ERROR_NO_DEVICE (100)",
        "failed GPU 0: cuInit: CUDA_ERROR_UNKNOWN (999)",
    )
    called = set(re.findall(r'call\("(\w+)"', PROGRAM)) | {"cuGetErrorName"}
    script = "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); [getattr(c, name) for name in sys.argv[2:]]"
    subprocess.run((SYSTEM, "-c", script, str(tmp_path / "libcuda.so.1"), *called), check=True)


# ---------------------------------------------------------------- smoke.sh

LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)"
MIG = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n"
    "  MIG 3g.20gb     Device  1: (UUID: MIG-2)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)"
)


def checked(
    folder: Path, listed: str, modes: str = "Default", busy: str = "", request: Mapping[str, object] = {}, **env: str
) -> dict[str, Check]:
    """smoke.sh where nvidia-smi lists that; `modes` are those of GPU-a and GPU-b."""
    each = dict(zip(("GPU-a", "GPU-b"), (modes.split() * 2)[:2], strict=True))
    said = "\n".join(f"{uuid}, {mode}" for uuid, mode in each.items())
    fake_program(
        folder,
        "nvidia-smi",
        f"case $* in -L) echo '{listed}' ;; *compute_mode*) echo '{said}' ;; *apps*) printf '{busy}' ;;\n"
        "*) printf '0, 30, 0, 0\\n1, 30, 0, 0\\n' ;; esac",
    )
    return smoked(folder, {"gpus": 2, **request}, **env)


@pytest.mark.parametrize(
    ("listed", "modes", "busy", "status", "message"),
    [
        (LIST, "Default", "GPU-a\\n", "passed", "CUDA starts and computes right (GPUs and MIG devices: 2)"),
        (MIG, "Default", "", "passed", "CUDA starts and computes right (GPUs and MIG devices: 3)"),
        (LIST, "Exclusive_Process", "", "passed", "CUDA starts and computes right (GPUs and MIG devices: 2)"),
        (
            LIST,
            "Exclusive_Process Default",
            "GPU-a\\n",
            "not-proven",
            "CUDA computes right (GPUs and MIG devices: 1), and was not started on others: GPU 0: in use, and its "
            "compute mode is Exclusive_Process;",
        ),
        (
            LIST,
            "Prohibited",
            "",
            "not-proven",
            "CUDA was not started: GPU 0: its compute mode is Prohibited;GPU 1: its compute mode is Prohibited;",
        ),
    ],
)
def test_cuda_is_started_where_that_disturbs_nobody(
    listed: str, modes: str, busy: str, status: str, message: str, library: Path, tmp_path: Path
) -> None:
    found = checked(tmp_path, listed, modes, busy, LD_LIBRARY_PATH=str(library))["cuda.init"]
    assert (found.status, found.message) == (status, message)


def test_where_it_is_not_known_whether_a_gpu_is_in_use_an_exclusive_one_is_let_alone(
    library: Path, tmp_path: Path
) -> None:
    found = checked(tmp_path, LIST, "Exclusive_Process", "'; exit 1; printf '", LD_LIBRARY_PATH=str(library))
    assert found["cuda.init"].status == "not-proven"


PASSED = "[Vector addition of 50000 elements]\\nTest PASSED\\nDone"
FAILED = "Failed to allocate device vector A (error code {})!"


@pytest.mark.parametrize(
    ("said", "status", "message"),
    [
        ((PASSED, PASSED), "passed", "CUDA starts and computes right (GPUs and MIG devices: 2)"),
        (
            (PASSED, FAILED.format("system not yet initialized")),
            "failed",
            "CUDA fails: GPU 1: vectorAdd: system not yet initialized",
        ),
        (("Killed", FAILED.format("out of memory")), "failed", "GPU 0: vectorAdd: no result, or a wrong one; GPU 1: "),
        ((PASSED, FAILED.format("out of memory")), "not-proven", "no memory is free: GPU 1: vectorAdd: out of memory"),
        (
            (FAILED.format("CUDA driver version is insufficient for CUDA runtime version"),) * 2,
            "not-proven",
            "CUDA was not started: GPU 0: vectorAdd: CUDA driver version is insufficient",
        ),
    ],
)
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_without_python_nvidias_sample_starts_cuda_on_each_gpu_and_in_containers(
    said: tuple[str, str], status: str, message: str, shell: str, tmp_path: Path
) -> None:
    """Its words: NVIDIA/cuda-samples Samples/0_Introduction/vectorAdd."""
    fake_program(tmp_path, "python3", "exit 127")
    answers = "".join(f"{gpu}) printf '{words}\\n' ;;" for gpu, words in zip(("GPU-a", "GPU-b"), said, strict=True))
    fake_program(tmp_path, "vectorAdd", f"case $CUDA_VISIBLE_DEVICES in {answers} esac")
    hide = f"s|/cuda-samples/vectorAdd|{tmp_path}/bin/vectorAdd|; s|-v python3|-v nothing|g"
    fake_program(
        tmp_path,
        "docker",
        f'case $1 in create) for last; do :; done; printf "%s" "$last" >{tmp_path}/inside ;; inspect) echo nvidia ;;\n'
        f"start) sed '{hide}' {tmp_path}/inside | tr '\\n' ' ' | {shell} ;; esac",  # as json_text makes it for the CRI
    )
    found = checked(tmp_path, LIST, request={"runtimes": ["docker"], "image": "a/b"})
    assert found["cuda.init"].status == status and message in found["cuda.init"].message
    if status == "passed":
        assert found["docker.gpus-all.cuda"].status == "passed"


def test_without_python_it_is_not_proven(tmp_path: Path) -> None:
    fake_program(tmp_path, "python3", "exit 127")
    found = checked(tmp_path, LIST)["cuda.init"]
    assert (found.status, found.fix) == ("not-proven", "install python3")


@pytest.mark.parametrize("there", [True, False], ids=["python3", "no python3"])
@pytest.mark.parametrize("faults", ["", "cuInit 999 all"], ids=["works", "fails"])
def test_a_container_is_asked_for_cuda_where_it_works_on_the_node(
    faults: str, there: bool, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "cuda").write_text(f"{faults}\n")
    hide = "" if there else "s|-v /usr/bin/python3|-v nothing|; s|-v python3|-v nothing|"
    fake_program(
        tmp_path,
        "docker",
        f'case $1 in create) for last; do :; done; printf "%s" "$last" >{tmp_path}/inside ;; inspect) echo nvidia ;;\n'
        f"start) sed '{hide}' {tmp_path}/inside | sh ;; esac",
    )
    env = {"LD_LIBRARY_PATH": str(library), "GPUNODE_LAB_ROOT": str(tmp_path)}
    found = checked(tmp_path, LIST, request={"runtimes": ["docker"], "image": "a/b"}, **env)
    inside = {name: check.status for name, check in found.items() if name.endswith(".cuda")}
    status = "passed" if there else "not-proven"
    assert inside == ({} if faults else {f"docker.{how}.cuda": status for how in ("runtime", "default", "gpus-all")})


# ---------------------------------------------------------------- cause and fix


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ("cuInit: CUDA_ERROR_UNKNOWN (999)", "cuda-999"),
        ("cuCtxCreate: CUDA_ERROR_DEVICE_UNAVAILABLE (46)", "cuda-46"),
        ("cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "cuda-802"),
        ("cuInit: CUDA_ERROR_NOT_INITIALIZED (3)", "cuda-init-failed"),
        ("cuInit: CUDA_ERROR_NO_DEVICE (100)", "cuda-100"),
        ("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "cuda-803"),
        ("cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)", "cuda-804"),
        ("cuModuleLoadData: CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)", "libcuda-missing"),
        ("libcuda.so.1: cannot open shared object file: No such file or directory", "libcuda-missing"),
    ],
)
@pytest.mark.parametrize("name", ["cuda.init", "docker.gpus-all.cuda"])
def test_an_error_of_cuda_has_the_doctors_cause_and_fix(name: str, error: str, fault: str) -> None:
    text = f"CUDA fails: GPU 0, GPU 1: {error}"
    [check] = smoke_checks(f"gpunode\tcheck\t{name}|failed|{text}|\ngpunode\tstatus\tunchanged\n", 0)
    row = load_faults().faults[fault]
    assert (check.message, check.fix) == (f"{text}: {row.cause}", row.fix)


def test_an_error_that_the_doctor_does_not_know_has_a_fix_that_looks() -> None:
    text = "gpunode\tcheck\tcuda.init|failed|CUDA fails: GPU 0: the kernel's result is wrong in 1 of 1024 places|\n"
    [check] = smoke_checks(f"{text}gpunode\tstatus\tunchanged\n", 0)
    assert check.fix.startswith("dmesg")
