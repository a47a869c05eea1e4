"""Parameters of the driver's kernel modules: /etc/modprobe.d, and what of them is in force.

The nvidia module shows its own in /proc/driver/nvidia/params, without the NVreg_ in front and numbers in decimal
(kernel-open/nvidia/nv-reg.h of NVIDIA/open-gpu-kernel-modules).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.core.errors import InputError
from gpunode.core.grammar import MODULE, PARAMETER
from gpunode.core.late import regex

CONF = "/etc/modprobe.d/zz-gpunode-nvidia.conf"  # of two files that set a parameter the last one counts
_MODULE = regex(r"nvidia(_[a-z0-9]+)*\Z")
_SHOWN_AS = {"NVreg_RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}  # the one with another name there

Parameters = Mapping[str, Mapping[str, str]]  # module → name → value


def check_parameters(parameters: Parameters) -> None:
    """Raises InputError for what cannot stand in a file of modprobe.d, or is of no module of the driver."""
    for module, options in parameters.items():
        if not _MODULE.match(module):
            raise InputError.of(
                "driver.module_parameters",
                f"has the module {module!r}",
                expected="a module of the driver: nvidia, nvidia_drm, nvidia_modeset, nvidia_uvm, nvidia_peermem",
                fix="other modules' parameters are not gpunode's: put them in a file of your own in /etc/modprobe.d",
            )
        for name, value in options.items():
            if not (name and MODULE.fits(name) and value and PARAMETER.fits(value)):
                raise InputError.of(
                    f"driver.module_parameters.{module}",
                    f"has {name}={value!r}",
                    expected="a name and a value without blanks and quotes, such as NVreg_EnableGpuFirmware: 0",
                    fix=f"modinfo -p {module} lists them on a node that has the driver",
                )


def shown(parameters: Parameters) -> dict[str, str]:
    """The nvidia module's parameters as /proc/driver/nvidia/params names them, with their values."""
    options = parameters.get("nvidia", {})
    return {_SHOWN_AS.get(name, name.removeprefix("NVreg_")): value for name, value in options.items()}


def not_in_force(parameters: Parameters, loaded: Mapping[str, str]) -> list[str]:
    """What of them the loaded module has otherwise; `loaded` is what it shows, and it does not show all.

    >>> not_in_force({"nvidia": {"NVreg_EnableGpuFirmware": "0x12"}}, {"EnableGpuFirmware": "18"})
    []
    """
    return [
        f"{name} is {loaded[name]}, wanted {value}"
        for name, value in shown(parameters).items()
        if name in loaded and _number(loaded[name]) != _number(value)
    ]


def _number(text: str) -> int | str:
    """Numbers of any base as the kernel shows them, of 32 bits without sign; else the text without quotes."""
    try:
        return int(text, 0) % 2**32
    except ValueError:
        return text.strip('"')
