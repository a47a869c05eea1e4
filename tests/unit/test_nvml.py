"""What NVML says of this machine's GPUs, with a driver that answers some questions and not others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpunode.core.model import NvmlGpu
from gpunode.edge.host.nvml import local_gpus, merge_gpus

H100 = {
    "GetName": "NVIDIA H100 80GB HBM3",
    "GetUUID": "GPU-1",
    "GetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
    "GetMemoryInfo": SimpleNamespace(total=80 << 30),
    "GetMigMode": (1, 0),
    "GetPersistenceMode": 1,
    "GetEccMode": (1, 1),
    "GetTotalEccErrors": 0,
    "GetRemappedRows": (1, 0, 1, 0),
    "GetCudaComputeCapability": (9, 0),
    "GetGpuFabricInfoV": 0,
}
GB10 = {"GetName": b"NVIDIA GB10", "GetUUID": b"GPU-2", "GetPciInfo": SimpleNamespace(busId="0000000F:01:00.0")}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the driver have these GPUs: what is not in a GPU's table it does not support; None fell off the bus."""

    def install(*tables: dict[str, Any] | None) -> None:
        def handle(index: int) -> dict[str, Any]:
            table = tables[index]
            if table is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return table

        def answer(question: str) -> Callable[..., Any]:
            def ask(table: dict[str, Any], *more: Any) -> Any:
                if question not in table:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                if question == "GetGpuFabricInfoV":
                    more[0].state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
                return table[question]

            return ask

        for name in dir(pynvml):
            if name.startswith("nvmlDeviceGet"):
                monkeypatch.setattr(pynvml, name, answer(name.removeprefix("nvmlDevice")))
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(tables))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)

    return install


def test_a_gpu_that_answers_everything_is_described_in_nvidia_smis_words(gpus: Callable[..., None]) -> None:
    gpus(H100)
    assert local_gpus() == (
        NvmlGpu(
            index=0,
            uuid="GPU-1",
            name="NVIDIA H100 80GB HBM3",
            slot="0000:1b:00.0",
            memory_mib=81920,
            mig_current="Enabled",
            mig_pending="Disabled",
            persistence="Enabled",
            ecc_current="Enabled",
            ecc_uncorrected=0,
            remap_pending="Yes",
            remap_failure="No",
            fabric_state="Completed",
        ),
    )


def test_what_a_gpu_does_not_support_stays_empty(gpus: Callable[..., None]) -> None:
    gpus(GB10)
    assert local_gpus() == (NvmlGpu(index=0, uuid="GPU-2", name="NVIDIA GB10", slot="000f:01:00.0"),)


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others(gpus: Callable[..., None]) -> None:
    gpus(None, GB10)
    assert [gpu.index for gpu in local_gpus()] == [1]


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert local_gpus() == ()


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
