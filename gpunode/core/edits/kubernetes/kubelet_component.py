"""A host's kubelet as a Component: which unit it is, which files are its own, how it takes them up."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from gpunode.core.edits.component import Component, asks, units_changed
from gpunode.core.edits.engine import Activation
from gpunode.core.edits.kubernetes.kubelet import (
    NAME,
    KubeletRequest,
    configure_kubelet,
    kubelet_files,
    unconfigure_kubelet,
)
from gpunode.core.edits.text import yamltext
from gpunode.core.edits.text.flags import flags_in, last_value
from gpunode.core.edits.text.unitfile import FOLDERS, program_of
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.model import Edit

UNITS = tuple(f"{top}/kubelet.service" for top in FOLDERS)


def completed(files: Mapping[str, bytes], request: KubeletRequest) -> KubeletRequest:
    """The request with the unit that is there; `files` are those of UNITS that exist."""
    unit = request.unit or next((path for path in UNITS if path in files), "")
    if not unit:
        raise RefusedError(
            f"{NAME} is not on this host: {UNITS[0]} is not there, nor {UNITS[1]}",
            fix="k3s, RKE2, k0s and MicroK8s have the kubelet in themselves: set it in their configuration; "
            "else name the unit: --unit PATH",
        )
    if not request.server_version:
        raise InputError(f"the release of {NAME} is not known", expected="such as 1.34", fix="give --server-version")
    return replace(request, unit=unit)


def kubelet_component(request: KubeletRequest, rules: SchedulerRules) -> Component:
    """What is asked, for whoever reads and writes the files of a host."""
    return Component(
        name=NAME,
        root=request.unit,
        label=f"{NAME} {request.unit}",
        files=lambda files: kubelet_files(files, request),
        configure=lambda files: configure_kubelet(files, request, rules),
        unconfigure=lambda files, undo: unconfigure_kubelet(files, request, undo),
        activation=lambda files, edit: kubelet_activation(files, edit, request),
    )


def kubelet_activation(files: Mapping[str, bytes], edit: Edit, request: KubeletRequest) -> Activation:
    """Its unit is restarted; running containers stay."""
    after = {path: data for path, data in {**files, **edit.changes}.items() if data is not None}
    return Activation(
        unit=posixpath.basename(request.unit),
        verb="restart",
        config=request.unit,
        health=_health(after, request),
        reread=units_changed(edit),
        disrupts="the kubelet restarts; containers run on, and nothing new starts on this node for some seconds",
    )


def _health(files: Mapping[str, bytes], request: KubeletRequest) -> tuple[tuple[str, ...], ...]:
    """How to ask where it answers, by its flags, its configuration file, or 127.0.0.1:10248."""
    flags = flags_in(program_of(files, request.unit, NAME).words)
    path = last_value(flags, "config") or ""
    said = yamltext.parse(path, files[path])[1] if path in files else {}
    port = last_value(flags, "healthz-port") or str(said.get("healthzPort", 10248))
    address = last_value(flags, "healthz-bind-address") or str(said.get("healthzBindAddress") or "127.0.0.1")
    return asks("http", address, port)
