"""Will the GPU work after the next boot: what stands ready for each kernel that can boot; why no module is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.grouped import grouped
from gpunode.core.items.first_boot import prepared
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import regex
from gpunode.core.model import NO_GPU, Check, Kernel, NodeFacts, PciDevice
from gpunode.core.model.node import own_key
from gpunode.core.numbers import version_tuple

_KEPT_OUT = regex(
    rb"^[ \t]*(blacklist[ \t]+nvidia[ \t\r]*$|install[ \t]+nvidia[ \t]+/(?:usr/)?bin/(?:false|true))", re.MULTILINE
)
_BLACKLIST = regex(rb"^[ \t]*(blacklist[ \t]+nouveau|install[ \t]+nouveau[ \t]+/bin/(false|true))", re.MULTILINE)


def boot_checks(facts: NodeFacts, knowledge: Knowledge) -> list[Check]:
    """A check `boot.RELEASE` for each kernel with an image, newest first, and what holds for all of them.

    Which of them boots is the boot loader's choice; without another one it is the newest.
    """
    if not facts.gpus and not facts.first_boot.program:  # a machine that is prepared waits for its GPU
        return [Check(id="boot.gpu", status="warning", message=NO_GPU, fix="lspci -d 10de:")]
    images = [kernel for kernel in facts.kernels if kernel.image]
    kernels = sorted(images, key=lambda one: (version_tuple(one.release), one.release), reverse=True)
    if not kernels:
        why = "no kernel image was found: this node is booted from elsewhere"
        return [Check(id="boot.kernels", status="warning", message=why, fix="check the image that it boots")]
    return [*(_kernel(kernel, facts, knowledge) for kernel in kernels), *_everywhere(facts)]


def other_kernels(facts: NodeFacts, knowledge: Knowledge | None) -> Iterator[Check]:
    """The kernels that do not run now and under which the GPU would not work, where this node has a driver."""
    kernels = facts.kernels if facts.driver.userspace or facts.driver.loaded else ()
    others = [kernel for kernel in kernels if kernel.image and not kernel.running]
    troubles = grouped(((*_trouble(one, facts, knowledge), bool(one.module)), one.release) for one in others)
    for (why, fix, built), of in troubles.items():
        if why:
            name = "boot.versions" if built else "boot.modules"
            yield Check(id=name, status="warning", message=f"under kernel {', '.join(of)}: {why}", fix=fix)


def _kernel(kernel: Kernel, facts: NodeFacts, knowledge: Knowledge) -> Check:
    name = f"boot.{kernel.release}"
    running = " (it runs now)" if kernel.running else ""
    why, fix = _trouble(kernel, facts, knowledge)
    if why:
        return Check(id=name, status="failed", message=f"{why}{running}", fix=fix)
    what = f"nvidia module {kernel.module}{f', {kernel.flavour}' if kernel.flavour else ''}"
    return Check(id=name, status="passed", message=f"{what}{running}")


def _trouble(kernel: Kernel, facts: NodeFacts, knowledge: Knowledge | None) -> tuple[str, str]:
    """What would keep the GPU from working under this kernel, and what to do; ("", "") for nothing."""
    if not kernel.module and not (facts.driver.userspace or facts.driver.loaded):
        return "no driver is installed", "gpunode provision"
    if not kernel.module and kernel.dkms in ("added", "built"):
        return f"DKMS has the nvidia module as {kernel.dkms}, not installed", f"dkms autoinstall -k {kernel.release}"
    build = f"dkms autoinstall -k {kernel.release}, or " if facts.by_dkms else ""
    if not kernel.module and not kernel.headers and build:
        return "no nvidia module, and no headers to build one with", "gpunode provision installs headers and builds it"
    if not kernel.module:
        return "no nvidia module", f"{build}gpunode provision"
    if facts.driver.userspace and kernel.module != facts.driver.userspace:
        return (
            f"its nvidia module is {kernel.module}, user space is {facts.driver.userspace}: nvidia-smi would fail",
            f"{build}gpunode provision",
        )
    firmware = facts.driver.firmware
    if firmware and kernel.flavour == "open" and kernel.module not in firmware:
        return (
            f"its open module {kernel.module} needs firmware of that version, and there is {', '.join(firmware)}",
            "gpunode provision, or install the firmware package of the driver's version",
        )
    models = [model for gpu in facts.gpus if knowledge and (model := knowledge.gpu(gpu.id))]
    for model in models:
        if (kernel.flavour, model.open) in (("open", "no"), ("proprietary", "only")):
            return f"the {kernel.flavour} module does not drive {model.name} ({model.arch})", "gpunode provision"
    return "", ""


def _everywhere(facts: NodeFacts) -> Iterator[Check]:
    for path, line in _lines(facts, _KEPT_OUT):
        never = line.startswith(b"install")
        word = "nvidia is never loaded" if never else "nvidia is not loaded by itself"
        yield Check(
            id="boot.blacklisted",
            status="failed" if never else "warning",
            message=f"{path} has «{line.decode()}»: {word}",
            fix=f"take that line out of {path}, and rebuild the initramfs",
        )
    if not any(_lines(facts, _BLACKLIST)):
        yield Check(
            id="boot.nouveau",
            status="warning",
            message="nouveau is not blacklisted in /etc/modprobe.d: it may take the GPU first",
            fix="gpunode provision blacklists it and rebuilds the initramfs",
        )
    signed = any(name.startswith("linux-modules-nvidia-") or "-signed-" in name for name in facts.packages)
    if facts.secure_boot and not signed and not facts.has_own_key:
        yield Check(
            id="boot.secure-boot",
            status="warning",
            message="Secure Boot is on: modules that DKMS built load only when their key is enrolled",
            fix=f"mokutil --test-key {own_key(facts.distro.id)}",
        )


def _lines(facts: NodeFacts, known: re.Pattern[bytes]) -> Iterator[tuple[str, bytes]]:
    """Such lines of modprobe.d, with their files."""
    for path, file in facts.files.items():
        if "/modprobe.d/" in path:
            yield from ((path, found[1]) for found in known.finditer(file.data or b""))


def waiting_gpus(facts: NodeFacts) -> list[PciDevice]:
    """The GPUs that wait for a module; one of a virtual machine, and WSL's, waits for none."""
    operator = facts.kubernetes.gpu_operator and not facts.driver.userspace  # its container brings the driver
    no_host = facts.container or facts.tegra or facts.virtualization == "wsl" or prepared(facts)
    if facts.driver.loaded or operator or no_host or not facts.kernel:
        return []
    return [gpu for gpu in facts.gpus if not gpu.driver.startswith("vfio")]


def why_unloaded(facts: NodeFacts) -> dict[str, str]:
    """The facts that decide why no module is loaded: words where one holds, "" where it does not."""
    gpus = waiting_gpus(facts)
    kernel = next(k for k in facts.kernels if k.running)
    release, userspace = kernel.release, facts.driver.userspace
    nouveau = [gpu.slot for gpu in gpus if gpu.driver in ("nouveau", "nova_core")]
    kept_out = [path for path, word in _lines(facts, _KEPT_OUT) if word.startswith(b"install")]
    other = kernel.module and userspace and kernel.module != userspace
    words = {
        "no-driver": (
            not userspace and not any(k.module for k in facts.kernels),
            f"no driver is installed{f', and {gpus[0].slot} is an NVIDIA GPU' if gpus else ''}",
        ),
        "no-headers": (
            not kernel.module and not kernel.headers and facts.by_dkms,
            f"kernel {release} has no module, and no headers to build one with",
        ),
        "dkms-unfinished": (
            not kernel.module and kernel.dkms in ("added", "built"),
            f"DKMS has the module for {release} as {kernel.dkms}, not installed",
        ),
        "no-module": (
            not kernel.module or other,
            f"the running kernel {release} has the module {kernel.module}, the libraries are {userspace}"
            if other
            else f"the running kernel {release} has no nvidia module",
        ),
        "nouveau": (bool(nouveau), f"nouveau drives {', '.join(nouveau)}"),
        "blocked": (bool(kept_out), f"{', '.join(kept_out)}: nvidia is never loaded"),
        "secure-boot": (
            bool(facts.secure_boot) and facts.by_dkms,
            f"Secure Boot is on, and the module for {release} was built here",
        ),
        "not-loaded": (bool(kernel.module), f"the module {kernel.module} is there for {release} and is not loaded"),
    }
    unknown = {
        "no-headers": not kernel.headers,
        "dkms-unfinished": not (kernel.module or kernel.dkms),
        "blocked": "files" in facts.unread,
        "secure-boot": facts.secure_boot is not False,  # also a module of the distribution's may be rejected
    }
    return {name: text if holds else "" for name, (holds, text) in words.items() if holds or not unknown.get(name)}
