"""What NVML says of this machine: real ctypes, the lab's compiled library, the lowest and newest nvidia-ml-py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from real_smi import Ill, RealSmi, branches, needed_library, write_health, write_root

from gpunode.core.errors import GpunodeError
from gpunode.core.model import NvmlGpu
from gpunode.core.selftest.readings import read_nvml, read_smi
from gpunode.edge.host import nvml
from gpunode.edge.host.nvml import local_gpus, merge_gpus, nvml_dump
from gpunode.lab import nvml as lab_nvml

BINDINGS = {  # the lowest that pyproject.toml allows, and the newest
    "12.570.86": "58907de35a845abd13dcb227f18298f3b5dd94a72d04c9e594e77711e95c0b51",
    "13.615.71": "959bf4adf6fe1308e4bd739e722236b0d1ec8392e2cefad33ff70c311380b9b6",
}
H100 = NvmlGpu(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    slot="0000:17:00.0",
    memory_mib=81559,
    mig_current="Disabled",
    mig_pending="Disabled",
    persistence="Disabled",
    ecc_current="Enabled",
    ecc_uncorrected=0,
    remap_pending="No",
    remap_failure="No",
    fabric_state="Completed",
    fabric_status="Success",
    recovery="None",
    event_reasons="0x0000000000000001",
)
Machine = Callable[..., Path]


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """That nvidia-ml-py is the one that gpunode finds."""
    version: str = request.param
    try:
        folder = lab_nvml.unpacked(f"nvidia-ml-py=={version}", BINDINGS[version])
    except GpunodeError as error:
        pytest.skip(f"needs nvidia-ml-py of PyPI: {error}")
    monkeypatch.syspath_prepend(str(folder))
    return version


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this machine one with these GPUs, a driver of that version, and the lab's NVML as its library."""

    def make(
        *gpus: str,
        ill: Ill | None = None,
        driver: str = "580.95.05",
        without: tuple[str, ...] = (),
        lib: Path | None = None,
    ) -> Path:
        library = lib or needed_library(*without)
        root = write_root(tmp_path / "root", gpus, ill)
        for name, value in lab_nvml.environment(library, root, driver).items():
            monkeypatch.setenv(name, value)
        loaded = tmp_path / "version"
        loaded.write_text("")
        monkeypatch.setattr(nvml, "DRIVER", (loaded,))
        for index, line in enumerate((root / "standin-gpus").read_text().splitlines()):
            folder = root / "proc/driver/nvidia/gpus" / line.split("\t")[0]
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Device Minor: \t {index}\n")
        monkeypatch.setattr(nvml, "SLOTS", root / "proc/driver/nvidia/gpus")
        return root

    return make


def known(gpu: NvmlGpu) -> NvmlGpu:
    return replace(gpu, uuid="")


def test_the_lowest_binding_that_is_tried_is_the_lowest_that_is_allowed() -> None:
    """12.560.30 lays out the fabric's state in another way, and its question for the firmware takes two arguments."""
    assert f'"nvidia-ml-py>={min(BINDINGS)}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_a_gpu_that_answers_everything_is_described_in_nvidia_smis_words(machine: Machine, binding: str) -> None:
    machine("h100", ill={0: {"remapped_rows.pending": "Yes", "fabric.state": "In Progress"}})
    [gpu] = local_gpus()
    assert gpu.uuid.startswith("GPU-")
    assert known(gpu) == replace(H100, remap_pending="Yes", fabric_state="In Progress", fabric_status="")


def test_what_a_gpu_does_not_support_stays_empty(machine: Machine, binding: str) -> None:
    machine("rtx4090", "p40")
    graphics, old = local_gpus()
    assert known(graphics) == NvmlGpu(
        index=0,
        name="NVIDIA GeForce RTX 4090",
        slot="0000:17:00.0",
        memory_mib=24564,
        persistence="Disabled",
        recovery="None",
        event_reasons="0x0000000000000001",
    )
    assert (old.retired_pending, old.remap_pending, old.fabric_state, old.fault) == ("No", "", "", "")


@pytest.mark.parametrize(
    ("ill", "expected"),
    [
        ({"fabric.status": "Unknown Error"}, {"fabric_status": "Unknown Error"}),
        ({"fabric.state": "Not Started"}, {"fabric_state": "Not Started", "fabric_status": ""}),
        ({"gpu_recovery_action": "Drain and Reset"}, {"recovery": "Drain and Reset"}),
        ({"gpu_recovery_action": "System Reboot"}, {"recovery": "System Reboot"}),
        ({"ecc.errors.uncorrected.volatile.total": "3"}, {"ecc_uncorrected": 3}),
    ],
)
def test_what_is_wrong_with_a_gpu(
    machine: Machine, binding: str, ill: dict[str, str], expected: dict[str, object]
) -> None:
    machine("h100", "h100", ill={0: ill})
    first, second = local_gpus()
    assert known(first) == replace(H100, **expected)  # type: ignore[arg-type]
    assert known(second) == replace(H100, index=1, slot="0000:1e:00.0")


@pytest.mark.parametrize(
    ("ill", "word"),
    [
        ({"reset": "1"}, "GPU requires reset"),
        ({"error": "999"}, "Unknown Error"),
        ({"error": "15"}, "GPU is lost"),  # fell off the bus after it was opened
    ],
)
def test_a_gpu_that_the_driver_cannot_speak_for_has_the_drivers_word(
    machine: Machine, binding: str, ill: dict[str, str], word: str
) -> None:
    machine("h100", "h100", ill={0: ill})
    first, second = local_gpus()
    assert (first.fault, first.slot, first.memory_mib, second.fault) == (word, "0000:17:00.0", None, "")
    assert [gpu.get("fault") for gpu in nvml_dump()["gpus"]] == [word, None]


def test_a_lost_gpu_is_named_and_does_not_hide_the_others(machine: Machine, binding: str) -> None:
    machine("h100", "h100", ill={0: {"lost": "1"}})
    first, second = local_gpus()
    assert first == NvmlGpu(index=0, slot="0000:17:00.0", fault="GPU is lost")
    assert known(second) == replace(H100, index=1, slot="0000:1e:00.0")
    assert [(gpu["slot"], gpu.get("fault", "")) for gpu in nvml_dump()["gpus"]] == [
        ("0000:17:00.0", "GPU is lost"),
        ("00000000:1E:00.0", ""),
    ]


def test_a_question_that_only_some_boards_cannot_answer_is_no_fault(machine: Machine, binding: str) -> None:
    machine("h100", ill={0: {"persistence_mode": "[Unknown Error]", "retired_pages.pending": "[Unknown Error]"}})
    [gpu] = local_gpus()
    assert (gpu.fault, gpu.persistence) == ("", "")


@pytest.mark.parametrize(
    ("driver", "without", "state"),
    [
        ("470.256.02", ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"), ""),
        ("525.147.05", ("nvmlDeviceGetGpuFabricInfoV",), "Completed"),
        ("535.261.03", (), "Completed"),
    ],
)
def test_an_older_driver_has_fewer_functions(
    machine: Machine, binding: str, driver: str, without: tuple[str, ...], state: str
) -> None:
    machine("h100", driver=driver, without=(*without, "nvmlDeviceGetRemappedRows", "nvmlDeviceGetPciInfo_v3"))
    [gpu] = local_gpus()
    assert (gpu.fabric_state, gpu.remap_pending, gpu.recovery, gpu.fault) == (state, "", "", "")
    assert nvml_dump()["machine"] == {"driver": driver, "cuda": nvml_dump()["machine"]["cuda"], "gpus": 1}


@pytest.mark.parametrize("branch", branches("550", "580", "615"))
def test_a_dump_agrees_with_the_real_nvidia_smi(machine: Machine, real_smi: RealSmi, branch: str) -> None:
    smi = real_smi(branch)
    ill = {0: {"nvlink.3": "down", "processes": f"{os.getpid()}:512"}, 2: {"remapped_rows.failure": "Yes"}}
    root = machine("a100", "t4", "h100", "p40", "rtx4090", ill=ill, driver=smi.program.version)
    rc, text = replace(smi, root=root)("-q", "-x")
    assert rc == 0
    printed, asked = read_smi(text), read_nvml(nvml_dump())
    assert asked.machine == printed.machine
    for slot, gpu in printed.gpus.items():
        both = {name: (value, asked.gpus[slot][name]) for name, value in gpu.items() if name in asked.gpus[slot]}
        assert {name: one for name, one in both.items() if len(set(one)) > 1} == {}
        assert len(both) > 15
    assert asked.gpus["0000:17:00.0"]["nvlink"] == "111011111111"
    assert asked.gpus["0000:17:00.0"]["compute_processes"] == "1"
    assert "nvlink" not in asked.gpus["0000:1e:00.0"]


# ---------------------------------------------------------------- without a driver, and with a library that fails


def test_without_a_driver_nvml_is_not_even_loaded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would make /dev/nvidiactl, and a machine that is only read stays as it is."""
    machine("h100", lib=_library(tmp_path, 'FILE *f = fopen(getenv("MARK"), "w"); if (f) fclose(f);'))
    mark = tmp_path / "loaded"
    monkeypatch.setenv("MARK", str(mark))
    monkeypatch.setattr(nvml, "DRIVER", (tmp_path / "none",))
    assert local_gpus() == ()
    with pytest.raises(GpunodeError, match="no driver"):
        nvml_dump()
    assert not mark.exists()
    monkeypatch.setattr(nvml, "DRIVER", (tmp_path / "version",))
    assert local_gpus() == ()
    assert mark.exists()


def test_a_driver_that_is_not_loaded_says_so(machine: Machine) -> None:
    machine("h100", driver="")
    assert local_gpus() == ()
    with pytest.raises(GpunodeError, match="Driver Not Loaded"):
        nvml_dump()


@pytest.mark.parametrize("code", ["*(volatile int *)0 = 1;", "abort();", "exit(3);"])
def test_a_library_that_crashes_does_not_end_gpunode(machine: Machine, tmp_path: Path, code: str) -> None:
    machine("h100", lib=_library(tmp_path, code))
    assert local_gpus() == ()
    with pytest.raises(GpunodeError, match="the library failed"):
        nvml_dump()


def test_a_library_that_hangs_is_left_alone(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("h100", lib=_library(tmp_path, "sleep(60);"))
    monkeypatch.setattr(nvml, "SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(GpunodeError, match="no answer"):
        nvml_dump()
    assert time.monotonic() - began < 20


def _library(folder: Path, code: str) -> Path:
    """A library whose nvmlInit does that."""
    includes = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
    source, built = folder / "init.c", folder / "broken" / "libnvidia-ml.so.1"
    built.parent.mkdir(exist_ok=True)
    source.write_text(f"{includes}int nvmlInitWithFlags(unsigned flags) {{ {code} return 9; }}\n")
    needed_library()  # there is a compiler
    subprocess.run(("gcc", "-w", "-shared", "-fPIC", str(source), "-o", str(built)), check=True)
    return built


def test_the_questions_of_every_binding_suit_the_headers_functions(machine: Machine, binding: str) -> None:
    """Through the library whose signatures NVIDIA's compiler checked: no crash, and nothing that is not JSON."""
    machine("h100", "a100", "b200", "t4", "v100", "rtx4090", driver="615.71.09")
    done = subprocess.run(
        (sys.executable, "-m", "gpunode.edge.host.nvml", "dump", str(nvml.SLOTS)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["answer"]["gpus"]) == 6


def test_a_gpu_next_to_switches_waits_for_the_fabric_manager(machine: Machine) -> None:
    root = machine("h100", "a100")
    (root / "sys/bus/pci/drivers/nvidia-nvswitch").mkdir()
    assert [gpu.fabric_state for gpu in local_gpus()] == ["In Progress", ""]
    with subprocess.Popen(("bash", "-c", "exec -a /usr/bin/nv-fabricmanager sleep 60")) as manager:
        while "nv-fabricmanager" not in Path(f"/proc/{manager.pid}/cmdline").read_text():
            time.sleep(0.05)
        assert [gpu.fabric_state for gpu in local_gpus()] == ["Completed", ""]
        manager.kill()


_NULLS = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
assert library.nvmlInit_v2() == 0
handle = ctypes.c_void_p()
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
for name in sys.argv[2:]:
    for first in (None, handle):
        if not (child := os.fork()):
            os._exit(0 * getattr(library, name)(first, None, None, None, None, None))
        if os.waitpid(child, 0)[1]:
            print(name, first)
"""


def test_no_function_of_the_library_dies_of_a_null(machine: Machine) -> None:
    machine("h100")
    names = re.findall(r"\b(nvml[A-Z]\w+)\s*\(", lab_nvml.header())
    names = [name for name in dict.fromkeys(names) if name in (needed_library().read_bytes().decode("latin-1"))]
    assert len(names) > 300
    done = subprocess.run(
        (sys.executable, "-c", _NULLS, str(needed_library()), *names), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


_ONE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert library.nvmlInit_v2() == 0
handle, value = ctypes.c_void_p(), ctypes.c_uint()
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
for name in sys.argv[2:]:
    status = getattr(library, "nvmlDeviceGet" + name)(handle, ctypes.byref(value))
    print(name, status, "" if status else value.value)
"""
REAL = """
MaxMigDeviceCount 0 0
GpuInstanceId 2
ComputeInstanceId 2
Attributes_v2 3
FanSpeed 3
NumFans 0 0
NumaNodeId 3
MultiGpuBoard 0 0
NumGpuCores 0 16896
MemoryBusWidth 0 5120
MaxPcieLinkGeneration 0 5
PowerManagementDefaultLimit 0 700000
SupportedEventTypes 0 65439
"""


def test_the_library_answers_as_that_of_a_real_h100_did(machine: Machine) -> None:
    """Status and number of a virtual machine with one H100, MIG off, driver 580.159.04."""
    machine("h100")
    words = [row.split() for row in REAL.split("\n") if row]
    command = (sys.executable, "-c", _ONE, str(needed_library()), *(word[0] for word in words))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line.split() for line in done.stdout.splitlines()] == words, done.stderr


# ---------------------------------------------------------------- with the probe


def test_nvml_adds_to_the_probe_and_takes_nothing_away() -> None:
    probed = (NvmlGpu(index=0, slot="0000:01:00.0", uuid="GPU-1", ecc_current="Enabled", memory_mib=10),)
    asked = (
        NvmlGpu(index=1, slot="0000:02:00.0", uuid="GPU-2"),
        NvmlGpu(index=0, slot="0000:01:00.0", uuid="GPU-1", memory_mib=12, name="NVIDIA A10"),
    )
    assert merge_gpus(probed, asked) == (
        NvmlGpu(index=0, slot="0000:01:00.0", uuid="GPU-1", ecc_current="Enabled", memory_mib=12, name="NVIDIA A10"),
        NvmlGpu(index=1, slot="0000:02:00.0", uuid="GPU-2"),
    )


def test_a_lost_gpu_without_a_slot_is_the_one_of_its_index() -> None:
    probed = (NvmlGpu(index=0, slot="0000:01:00.0", uuid="GPU-1"), NvmlGpu(index=1, slot="0000:02:00.0", uuid="GPU-2"))
    found = merge_gpus(probed, (NvmlGpu(index=1, fault="GPU is lost"),))
    assert found == (probed[0], replace(probed[1], fault="GPU is lost"))


def test_health_is_read_at_every_question(machine: Machine) -> None:
    root = machine("h100")
    assert local_gpus()[0].fault == ""
    write_health(root, {0: {"reset": "1"}})
    assert local_gpus()[0].fault == "GPU requires reset"
