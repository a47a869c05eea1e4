"""Will the GPU work after the next boot: what stands ready for each kernel that can boot, as checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.knowledge import Knowledge
from gpunode.core.late import regex
from gpunode.core.model import Check, Kernel, NodeFacts
from gpunode.core.model.node import own_key
from gpunode.core.numbers import whole

_KEPT_OUT = regex(
    rb"^[ \t]*(blacklist[ \t]+nvidia[ \t\r]*$|install[ \t]+nvidia[ \t]+/bin/(?:false|true))", re.MULTILINE
)
_BLACKLIST = regex(rb"^[ \t]*(blacklist[ \t]+nouveau|install[ \t]+nouveau[ \t]+/bin/(false|true))", re.MULTILINE)


def boot_checks(facts: NodeFacts, knowledge: Knowledge) -> list[Check]:
    """A check `boot.RELEASE` for each kernel with an image, newest first, and what holds for all of them.

    Which of them boots is the boot loader's choice; without another one it is the newest.
    """
    if not facts.gpus and not facts.first_boot.program:  # a machine that is prepared waits for its GPU
        return [Check(id="boot.gpu", status="warning", message="no NVIDIA GPU on PCI", fix="lspci -d 10de:")]
    kernels = sorted((k for k in facts.kernels if k.image), key=lambda k: _order(k.release), reverse=True)
    if not kernels:
        return [
            Check(
                id="boot.kernels",
                status="warning",
                message="no kernel image was found: this node is booted from elsewhere",
                fix="check the image that it boots",
            )
        ]
    return [*(_kernel(kernel, facts, knowledge) for kernel in kernels), *_everywhere(facts)]


def _order(release: str) -> tuple[tuple[int, ...], str]:
    return tuple(whole(part) for part in re.findall(r"\d+", release)), release


def _kernel(kernel: Kernel, facts: NodeFacts, knowledge: Knowledge) -> Check:
    name = f"boot.{kernel.release}"
    running = " (it runs now)" if kernel.running else ""
    why, fix = _trouble(kernel, facts, knowledge)
    if why:
        return Check(id=name, status="failed", message=f"{why}{running}", fix=fix)
    what = f"nvidia module {kernel.module}{f', {kernel.flavour}' if kernel.flavour else ''}"
    return Check(id=name, status="passed", message=f"{what}{running}")


def _trouble(kernel: Kernel, facts: NodeFacts, knowledge: Knowledge) -> tuple[str, str]:
    """What would keep the GPU from working under this kernel, and what to do; ("", "") for nothing."""
    if not kernel.module and not facts.driver.userspace:
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
    models = [model for gpu in facts.gpus if (model := knowledge.gpu(gpu.id))]
    for model in models:
        if (kernel.flavour, model.open) in (("open", "no"), ("proprietary", "only")):
            return f"the {kernel.flavour} module does not drive {model.name} ({model.arch})", "gpunode provision"
    return "", ""


def _everywhere(facts: NodeFacts) -> Iterator[Check]:
    texts = {path: file.data for path, file in facts.files.items() if path.startswith("/etc/modprobe.d/") and file.data}
    for path, text in texts.items():
        if found := _KEPT_OUT.search(text):
            never = found[1].startswith(b"install")
            word = "nvidia is never loaded" if never else "nvidia is not loaded by itself"
            yield Check(
                id="boot.blacklisted",
                status="failed" if never else "warning",
                message=f"{path} has «{found[1].decode()}»: {word}",
                fix=f"take that line out of {path}, and rebuild the initramfs",
            )
    if not any(_BLACKLIST.search(text) for text in texts.values()):
        yield Check(
            id="boot.nouveau",
            status="warning",
            message="nouveau is not blacklisted in /etc/modprobe.d: it may take the GPU first",
            fix="gpunode provision blacklists it and rebuilds the initramfs",
        )
    signed = any(name.startswith("linux-modules-nvidia-") or "-signed-" in name for name in facts.packages)
    if facts.secure_boot and not signed:
        yield Check(
            id="boot.secure-boot",
            status="warning",
            message="Secure Boot is on: modules that DKMS built load only when their key is enrolled",
            fix=f"mokutil --test-key {own_key(facts.distro.id)}",
        )
