"""What an edit is asked for, and the checks every engine shares."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpunode.core.errors import InputError
from gpunode.core.model import Distribution, Problem, RuntimeName

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # of daemons, by systemd
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest:
    """What the configuration of one engine should say, and what is known of the engine.

    `distribution` is the Kubernetes that brings the engine, "" for one of its own.  `version` is what the daemon says
    of itself ("1.6.20~ds1", "" unknown: then only what every version reads is written).  `config` and `drop_in` are
    absolute paths, "" takes the engine's own; `in_place` asks for no drop-in.  `default_runtime` keep, `cdi` None and
    `cgroup_driver` "" leave what is there.  `flags` are the daemon's arguments: what they set cannot be set in a file
    as well.  `enable_cri` takes containerd's CRI plugin out of `disabled_plugins`.
    """

    runtime: RuntimeName
    distribution: Distribution = ""
    config: str = ""
    drop_in: str = ""
    in_place: bool = False
    version: str = ""
    default_runtime: Literal["nvidia", "runc", "keep"] = "nvidia"
    name: str = "nvidia"
    path: str = "/usr/bin/nvidia-container-runtime"
    cdi: bool | None = None
    cgroup_driver: Literal["systemd", "cgroupfs", ""] = ""
    flags: tuple[str, ...] = ()
    enable_cri: bool = False


class Refusal(Exception):
    """An edit that would not work: becomes the Problem of the Edit, and no file changes."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.problem = Problem(what=what, fix=fix)


def check_request(request: RuntimeRequest) -> None:
    """Raise InputError for names and paths that no engine takes."""
    if not _NAME.match(request.name) or request.name == "runc":
        raise InputError(
            f"runtime name {request.name!r}",
            expected="letters, digits, '.', '_', '-', and not runc, which the engines reserve",
        )
    for what, path in (("runtime path", request.path), ("config", request.config), ("drop-in", request.drop_in)):
        if path and (not path.startswith("/") or posixpath.normpath(path) != path or not path.isprintable()):
            raise InputError(f"{what} {path!r}", expected="an absolute, normalised path")
    if not request.path:
        raise InputError("the runtime path is empty", expected="an absolute path")
    if request.drop_in and request.drop_in == request.config:
        raise InputError(f"the drop-in {request.drop_in} is the config file itself", expected="another path")


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those files of `after` that differ from `before`."""
    return {path: data for path, data in after.items() if before.get(path) != data}
