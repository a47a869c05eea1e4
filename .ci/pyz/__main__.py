"""The start of gpunode.pyz: unpacks, once, what this Python and this machine can use, and runs gpunode from there.

Any Python 3 can read it, so that an old one says what is wrong.  pack.py fills BUILD, LAYERS and PROGRAMS in.
"""

import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

BUILD = ""  # sha256 of all layers
LAYERS = {}  # name of a layer → the targets that have its files: cp313-x86_64 and others
PROGRAMS = {}  # name → module:function
OLDEST = (3, 11)
GLIBC = (2, 28)  # what the compiled packages need


def main():
    if sys.version_info < OLDEST:
        newer()
    folder, kept = ready()
    sys.path[0] = str(folder / "lib")
    try:
        from gpunode.cli.main import main as run

        run()
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def newer():
    """Goes on in a newer Python of this machine, or ends with what is needed."""
    for minor in range(19, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606 (no shell is wanted)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.exit(
        f"gpunode.pyz needs Python {OLDEST[0]}.{OLDEST[1]} or newer. This is Python {here}, and no newer one is on the "
        "PATH: install the package python3.11 or newer of this distribution, then run it again."
    )


# ---------------------------------------------------------------- where it is unpacked


def ready():
    """The folder of the packages, and whether it stays: a temporary one where there can be no private cache."""
    target, exact = target_of(sys.version_info[1], machine())
    cache = private(cache_folder())
    if cache:
        python = zlib.crc32(os.fsencode(sys.executable))  # the programs name it
        folder = cache / f"{BUILD[:16]}-{target if exact else target + '-plain'}-{python:08x}"
        if folder.is_dir() or unpacked(cache, folder, target, exact):
            return folder, True
    folder = Path(tempfile.mkdtemp(prefix="gpunode-pyz-"))
    if exact and not runs_programs(folder):
        target, exact = target.partition("-")[0], False
    unpack(folder, target, exact)
    programs(folder / "lib")
    return folder, False


def unpacked(cache, folder, target, exact):
    """A whole folder takes its name at once; where another start was faster, that one's is used.  False: no room."""
    made = None
    try:
        made = Path(tempfile.mkdtemp(prefix="unpacking-", dir=str(cache)))
        unpack(made, target, exact)
        programs(made / "lib", folder / "lib")
        made.rename(folder)
    except OSError:
        if made:
            shutil.rmtree(str(made), ignore_errors=True)
        return folder.is_dir()
    return True


def cache_folder():
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~"), ".cache")  # noqa: PTH111 (Path.home() raises where there is none)
    return base / "gpunode" / "pyz"


def private(folder):
    """The folder, made where it is not there; None where it is of no use, or somebody else could write into it."""
    try:
        if not folder.is_absolute():
            return None
        for path in [*reversed(folder.parents), folder]:
            if not path.is_dir():
                path.mkdir(0o700)
        real = folder.resolve()
        for path in [real, *real.parents]:
            state = path.stat()
            others = state.st_mode & 0o022 and not state.st_mode & 0o1000  # a sticky folder keeps what is ours
            if state.st_uid not in (0, os.geteuid()) or others:
                return None
    except OSError:
        return None
    return real if os.access(str(real), os.W_OK | os.X_OK) and runs_programs(real) else None


def runs_programs(folder):
    return not os.statvfs(str(folder)).f_flag & os.ST_NOEXEC


# ---------------------------------------------------------------- what is unpacked


def machine():
    """x86_64 or aarch64 where compiled packages can run, else ""."""
    import sysconfig

    try:
        name, number = os.confstr("CS_GNU_LIBC_VERSION").split()
        enough = name == "glibc" and tuple(int(part) for part in number.split(".")[:2]) >= GLIBC
    except (AttributeError, OSError, ValueError):  # another C library
        enough = False
    usual = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    return os.uname().machine if enough and usual and sys.maxsize > 2**32 else ""


def target_of(minor, here):
    """The target whose files are used, and whether it is ours: else only what all machines have in common."""
    targets = {target for layer in LAYERS.values() for target in layer}
    if f"cp3{minor}-{here}" in targets:
        return f"cp3{minor}-{here}", True
    versions = sorted({int(target[3:].partition("-")[0]) for target in targets})
    return f"cp3{max([v for v in versions if v <= minor] or versions[:1])}", False


def layers_of(target, exact):
    if exact:
        return [name for name, targets in LAYERS.items() if target in targets]
    alike = {one for layer in LAYERS.values() for one in layer if one.partition("-")[0] == target}
    return [name for name, targets in LAYERS.items() if alike <= set(targets)]


def unpack(folder, target, exact):
    with zipfile.ZipFile(sys.path[0]) as outer:
        for name in layers_of(target, exact):
            with outer.open(name) as stream, zipfile.ZipFile(stream) as layer:
                layer.extractall(str(folder / "lib"))


def programs(lib, final=None):
    """ansible-playbook and others, as pip writes them: they know their packages, and give nobody a PYTHONPATH."""
    (lib / "bin").mkdir(0o700)
    for name, entry in PROGRAMS.items():
        module, function = entry.split(":")
        path = lib / "bin" / name
        text = (
            f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"  # a path may be too long for a first line
            f"import sys\nsys.path[0] = {str(final or lib)!r}\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)


if __name__ == "__main__":
    main()
