"""gpunode.yml, `gpu`: settings of the GPUs themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpunode.core.errors import InputError
from gpunode.core.spec.option import option


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """Settings of all GPUs of a host, in force at once and at each boot."""

    persistence: bool | None = option(
        None, "persistence mode on or off; null leaves it to nvidia-persistenced, which Ubuntu starts without it"
    )
    power_limit: int | None = option(None, "watts that a GPU may draw; null leaves it as it is")
    compute_mode: Literal["keep", "default", "exclusive-process", "prohibited"] = option(
        "keep", "how many programs may use a GPU: keep, default (any), exclusive-process (one), or prohibited (none)"
    )

    @property
    def given(self) -> bool:
        """Whether anything is to be set."""
        return self != GpuSpec()


def check_gpu(gpu: GpuSpec, where: str) -> None:
    """Raises InputError for settings that cannot be together."""
    if gpu.power_limit is not None and gpu.power_limit < 1:
        raise InputError(f"{where}: gpu.power_limit is {gpu.power_limit}", expected="watts, 1 or more, or null")
    if gpu.power_limit is not None and not gpu.persistence:
        raise InputError(
            f"{where}: gpu.power_limit is set, and gpu.persistence is not true",
            expected="persistence: true: without it the driver forgets the limit when the last program ends",
            fix="set gpu.persistence to true",
        )
