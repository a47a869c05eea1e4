"""The NVIDIA Container Toolkit's own config.toml: files → files, every other byte kept.

The packages write the file once, with every key that has a default (nvidia-ctk config --in-place), and never again; a
missing file or key means the default.  nvidia-container-runtime reads it for each container: nothing is restarted.
Sources: NVIDIA/nvidia-container-toolkit api/config/v1, packaging/debian/nvidia-container-toolkit-base.postinst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.edits.engines import dropin
from gpunode.core.edits.target import Activation, EditTarget, Files, Records, Refusal
from gpunode.core.edits.text import toml
from gpunode.core.engines import TOOLKIT_CONFIG as CONFIG
from gpunode.core.errors import InputError
from gpunode.core.model import Edit, Reason

SOURCE = "github NVIDIA/nvidia-container-toolkit api/config/v1/config.go"
_CLI, _RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"
_PLACES: Mapping[str, toml.Path] = {
    "no_cgroups": (_CLI, "no-cgroups"),
    "mode": (_RUNTIME, "mode"),
    "log_level": (_RUNTIME, "log-level"),
    "accept_nvidia_visible_devices_envvar_when_unprivileged": (
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
    ),
    "accept_nvidia_visible_devices_as_volume_mounts": ("accept-nvidia-visible-devices-as-volume-mounts",),
    "ldconfig": (_CLI, "ldconfig"),
    "user": (_CLI, "user"),
    "load_kmods": (_CLI, "load-kmods"),
    "swarm_resource": ("swarm-resource",),
    "supported_driver_capabilities": ("supported-driver-capabilities",),
    "disable_require": ("disable-require",),
    "ignore_imex_channel_requests": ("features", "ignore-imex-channel-requests"),
    "cuda_compat_mode": (_RUNTIME, "modes", "legacy", "cuda-compat-mode"),
}
_LOGS: Mapping[toml.Path, str] = {
    (_CLI, "debug"): "/var/log/nvidia-container-toolkit.log",
    (_RUNTIME, "debug"): "/var/log/nvidia-container-runtime.log",
}


def toolkit_target(settings: Mapping[str, Any]) -> EditTarget:
    """The file with `settings` (keys of toolkit.config in gpunode.yml).  Raises InputError for unknown ones."""
    unknown = [key for key in settings if key not in (*_PLACES, "debug")]
    if unknown:
        raise InputError(f"toolkit config: unknown key {unknown[0]!r}", expected=", ".join((*_PLACES, "debug")))

    def kept(_files: Files, _undo: Records) -> Edit:
        raise Refusal(f"{CONFIG}: it is not known which settings are gpunode's", "edit the file by hand")

    return EditTarget(
        name="the container toolkit",
        root=CONFIG,
        label=f"toolkit {CONFIG}",
        patterns=lambda _files: (CONFIG,),
        edit=lambda files: _edited(files, settings),
        remove=kept,
        activation=lambda _files, _edit: Activation(unit="", verb="", config=CONFIG),
    )


def _edited(files: Files, settings: Mapping[str, Any]) -> Edit:
    data = files.get(CONFIG)
    text, doc = dropin.load(CONFIG, data or b"")
    try:
        sets, removes = _wanted(doc, settings)
        after = toml.edit(text, sets, removes)
    except Refusal as refusal:
        raise Refusal(f"{CONFIG}: {refusal.problem.what}", refusal.problem.fix) from None
    if after == text:
        return Edit()
    changes = [f"sets {'.'.join(key)} = {toml.literal(value)}" for key, value in sets.items()]
    changes += [f"removes {'.'.join(key)}" for key in removes]
    return Edit(
        changes={CONFIG: dropin.encode(after, data or b"")},
        reasons=(Reason(what=CONFIG, why="; ".join(changes), source=SOURCE),),
    )


def _wanted(doc: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[toml.Path, Any], list[toml.Path]]:
    """What to set and to remove, only what differs from what the file says."""
    asked: dict[toml.Path, Any] = {_PLACES[key]: value for key, value in settings.items() if key in _PLACES}
    asked |= dict(_LOGS) if settings.get("debug") else {}
    removes = [key for key in _LOGS if settings.get("debug") is False and _logs(doc, key)]
    # a value of another type has to be written again: 0 is not false to the toolkit
    sets = {key: value for key, value in asked.items() if repr(toml.lookup(doc, key)) != repr(value)}
    return sets, removes


def _logs(doc: Mapping[str, Any], key: toml.Path) -> bool:
    return toml.lookup(doc, key) not in (None, "", "/dev/null")  # /dev/null is the default of the runtime
