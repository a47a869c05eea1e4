"""A kernel module's shell: an ELF object that holds nothing but module information, which kmod's tools read."""

from __future__ import annotations

import struct
from collections.abc import Sequence

SHT_PROGBITS, SHT_STRTAB, SHF_ALLOC, ET_REL = 1, 3, 2, 1
# where a module is signed its signature ends so; this one has none that a key would fit
SIGNED = bytes(12) + b"~Module signature appended~\n"
MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
_SECTION = "<IIQQQQIIQQ"


def module_elf(info: Sequence[str], machine: str = "x86_64") -> bytes:
    """The bytes of a relocatable ELF object for that machine; its section .modinfo holds `info`: `version=580.95.05`, …

    modinfo, depmod and modprobe read it as they read a real module; no kernel would load it (System V ABI, chapter 4).
    """
    modinfo = b"".join(f"{line}\0".encode() for line in info)
    names = b"\0.modinfo\0.gnu.linkonce.this_module\0.shstrtab\0"
    this_module = bytes(64)
    body = modinfo + this_module + names
    start = 64  # the ELF header's size: the contents follow it
    sections = [
        (0, 0, 0, 0, 0),
        (names.index(b".modinfo"), SHT_PROGBITS, SHF_ALLOC, start, len(modinfo)),
        (names.index(b".gnu"), SHT_PROGBITS, SHF_ALLOC, start + len(modinfo), len(this_module)),
        (names.index(b".shstrtab"), SHT_STRTAB, 0, start + len(modinfo) + len(this_module), len(names)),
    ]
    padding = bytes(-len(body) % 8)
    table = b"".join(
        struct.pack(_SECTION, name, kind, flags, 0, offset, size, 0, 0, 1, 0)
        for name, kind, flags, offset, size in sections
    )
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    fields = (ET_REL, MACHINES[machine], 1, 0, 0, start + len(body) + len(padding), 0, 64, 0, 0, 64, len(sections), 3)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + body + padding + table
