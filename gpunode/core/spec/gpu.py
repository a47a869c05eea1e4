"""gpunode.yml, `gpu`: settings of the GPUs themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, fields, replace
from gpunode.core.spec.option import check_least, check_text, option

PCI_ID = r"10de:[0-9a-f]{4}"
OTHERS = "*"  # all models that `models` does not name


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """Settings of GPUs, in force at once and at each boot."""

    persistence: bool | None = option(
        None, "persistence mode on or off; null leaves it to nvidia-persistenced, which Ubuntu starts without it"
    )
    power_limit: int | None = option(
        None, "watts that a GPU may draw, 0 for what its driver has by itself; null leaves it as it is"
    )
    compute_mode: Literal["keep", "default", "exclusive-process", "prohibited"] = option(
        "keep", "how many programs may use a GPU: keep, default (any), exclusive-process (one), or prohibited (none)"
    )
    clocks: str = option(
        "", "MHz between which the clock of a GPU stays: '210,1410', '1410' for both, or free; empty leaves it as it is"
    )
    ecc: bool | None = option(
        None, "ECC of a GPU's memory on or off, which takes a reboot (`reboot`); null leaves it as it is"
    )

    @property
    def clock_range(self) -> tuple[int, int] | None:
        """(least, most) MHz."""
        least, _, most = self.clocks.partition(",")
        return (int(least), int(most or least)) if self.clocks not in ("", "free") else None


@dataclass(frozen=True, kw_only=True)
class GpuSpec(GpuSettings):
    """Settings of all GPUs of a host, in force at once and at each boot."""

    models: Mapping[str, GpuSettings] = option(
        {}, "other settings of some models, by PCI id: {'10de:2330': {power_limit: 600}}; `gpunode detect` shows ids"
    )

    @property
    def given(self) -> bool:
        """Whether anything is to be set."""
        return self != GpuSpec()

    def by_model(self) -> dict[str, GpuSettings]:
        """PCI id, or OTHERS → its settings: what `models` does not say of a model is as for all."""
        own = {one.name: getattr(self, one.name) for one in fields(GpuSettings)}
        return {
            **{model: replace(GpuSettings(**own), **_said(settings)) for model, settings in self.models.items()},
            OTHERS: GpuSettings(**own),
        }

    def of(self, model: str) -> GpuSettings:
        """The settings of GPUs of that PCI id."""
        settings = self.by_model()
        return settings.get(model, settings[OTHERS])


def _said(settings: GpuSettings) -> dict[str, Any]:
    empty = GpuSettings()
    said = {one.name: getattr(settings, one.name) for one in fields(GpuSettings)}
    return {name: value for name, value in said.items() if value != getattr(empty, name)}


def check_gpu(gpu: GpuSpec) -> None:
    """Raises InputError for settings that cannot be together."""
    for model in gpu.models:
        check_text("gpu.models", model, PCI_ID, "a PCI id such as '10de:2330', in quotes", verb="has")
    for model, settings in gpu.by_model().items():
        _check_settings(settings, "gpu" if model == OTHERS else f"gpu.models.{model}")


def _check_settings(settings: GpuSettings, key: str) -> None:
    check_least(f"{key}.power_limit", settings.power_limit, 0, "watts, 0 (the driver's own), or null")
    clocks = r"([1-9]\d{1,4}(,[1-9]\d{1,4})?|free)?"
    check_text(f"{key}.clocks", settings.clocks, clocks, "MHz: '1410' or '210,1410'; or free")
    if settings.clock_range and settings.clock_range[0] > settings.clock_range[1]:
        raise InputError.of(f"{key}.clocks", f"is {settings.clocks!r}", expected="the lower one first: '210,1410'")
    for name, value, words in (
        ("power_limit", settings.power_limit, "limit"),
        ("clocks", settings.clock_range, "clocks"),
    ):
        if value and not settings.persistence:
            raise InputError.of(
                f"{key}.{name}",
                f"is set, and {key}.persistence is not true",
                expected=f"persistence: true: without it the driver forgets the {words} when the last program ends",
                fix="set gpu.persistence to true",
            )
