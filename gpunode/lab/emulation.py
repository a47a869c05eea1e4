"""aarch64 nodes on an x86_64 machine: the kernel runs their programs by QEMU (user-mode emulation, binfmt_misc).

The registration is the lab's own: it has a name of its own, is seen through a mount of its own, and both go with the
last such node.  The kernel opens the emulator when it is registered (flag F), so it need not be in the nodes.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from gpunode.core.errors import RefusedError
from gpunode.lab import machine
from gpunode.lab.machine import Log

PACKAGE = "qemu-user-static"
RULE = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
MAKING = "emulated"  # the lock of who makes an image of such nodes


def rule_for(name: str, rule: str) -> str:
    r"""A line of binfmt.d under another name, with the flags that a node needs.

    C: programs with the set-user-ID bit, such as sudo, get the rights of their owner.

    >>> rule_for("mine", r":qemu-aarch64:M::\x7fELF:\xff\xff:/usr/libexec/emulator:OPF")
    ':mine:M::\\x7fELF:\\xff\\xff:/usr/libexec/emulator:OPFC'
    """
    _, _, kind, offset, magic, mask, emulator, flags = rule.strip().split(":")
    return ":".join(("", name, kind, offset, magic, mask, emulator, flags + "".join(set("C") - set(flags))))


def register(*, log: Log = lambda _: None) -> None:
    """See to it that this machine runs aarch64 programs; RefusedError, with what to do, where it cannot."""
    with machine.lock("emulation", log=log):
        folder, name = _folder(), _name()
        if folder.is_mount() and (folder / name).exists():
            return
        if not RULE.exists():
            raise RefusedError(
                f"this machine has no emulator of aarch64: {RULE} is missing",
                expected=f"Debian's package {PACKAGE}",
                fix=f"apt-get install {PACKAGE}",
            )
        _mount(folder)
        if (folder / name).exists():  # it outlived an earlier mount, as it does where this machine has one of its own
            return
        try:
            (folder / "register").write_text(rule_for(name, RULE.read_text()))
        except OSError as error:
            _unmount(folder)
            raise RefusedError(
                f"the kernel does not register an emulator of aarch64: {error}",
                expected="a machine whose root may register binary formats",
                fix="use a virtual machine instead of a container",
            ) from error


def release(*, log: Log) -> None:
    """Take the registration and its mount away, unless an image is being made: its maker does it then."""
    folder = _folder()
    if not folder.is_mount():
        return
    with machine.lock("emulation", log=log), (machine.places().cache / f"{MAKING}.lock").open("a") as image:
        try:
            fcntl.flock(image, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if (entry := folder / _name()).exists():
            entry.write_text("-1")
        _unmount(folder)


def _name() -> str:
    return f"gpunode-lab-aarch64{machine.places().suffix}"


def _folder() -> Path:
    return machine.places().state / "binfmt_misc"


def _mount(folder: Path) -> None:
    """A registration may end with the last mount, so one stays for as long as there are nodes."""
    if folder.is_mount():
        return
    folder.mkdir(parents=True, exist_ok=True)
    done = machine.run("mount", "-t", "binfmt_misc", "none", str(folder), check=False)
    if done.returncode:
        folder.rmdir()
        raise RefusedError(
            f"binfmt_misc cannot be mounted: {done.stderr.strip()}",
            expected="a kernel with CONFIG_BINFMT_MISC",
            fix="modprobe binfmt_misc, or use a machine whose kernel has it",
        )


def _unmount(folder: Path) -> None:
    machine.run("umount", str(folder))
    folder.rmdir()
