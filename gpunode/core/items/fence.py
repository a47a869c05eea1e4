"""Unattended upgrades of Debian and Ubuntu stay on, and leave the driver alone.

Locks on packages (apt-mark hold) stop them for what is locked; libraries that come along are not.  A pattern of
Package-Blacklist is a regular expression that has to fit from the start of the name (unattended-upgrades,
is_pkgname_in_blacklist), and files of apt.conf.d add to one list.
"""

from __future__ import annotations

from gpunode.core.model import DriverChoice, NodeFacts

CONF = "/etc/apt/apt.conf.d/52gpunode-unattended-upgrades"
UNIT = "unattended-upgrades"
_DRIVER = (
    *("nvidia-", "libnvidia-", "xserver-xorg-video-nvidia", "firmware-nvidia-", "cuda-drivers", "cuda-compat-"),
    *("libcuda1$", "libcudadebugger1$", "libnvcuvid1$", "libnvoptix1$", "libnvsdm", "nvlsm$"),
    *("datacenter-gpu-manager",),
)
_PREBUILT = "linux-modules-nvidia-"
# with Ubuntu's built modules a kernel must not come before its module does: without DKMS nothing builds one
_KERNELS = (
    _PREBUILT,
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
    "linux-(image|headers|modules|generic|virtual|aws|azure|gcp|oracle)",
)


def fence_patterns(facts: NodeFacts, driver: DriverChoice) -> tuple[str, ...]:
    """What unattended upgrades must pass by; nothing where they are not installed, or nothing is to be held."""
    held = any(package.hold for package in driver.packages)
    if not held or UNIT not in facts.services or facts.package_manager not in ("apt", ""):
        return ()
    prebuilt = any(package.name.startswith(_PREBUILT) for package in driver.packages)
    return (*_DRIVER, *(_KERNELS if prebuilt else ()))
