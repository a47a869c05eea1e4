"""A host's kube-scheduler as a Component: which it is, which files are its own, how it takes them up."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.core.edits.component import Component, asks, units_changed
from gpunode.core.edits.engine import Activation
from gpunode.core.edits.kubernetes.scheduler import (
    NAME,
    SchedulerRequest,
    configure_scheduler,
    host_of,
    image_version,
    scheduler_files,
    unconfigure_scheduler,
)
from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text.flags import Flag, last_value
from gpunode.core.edits.text.unitfile import FOLDERS
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge.scheduler import SchedulerRules, minor_of
from gpunode.core.model import Edit

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
UNITS = tuple(f"{top}/kube-scheduler.service" for top in FOLDERS)


def completed(files: Mapping[str, bytes], request: SchedulerRequest) -> SchedulerRequest:
    """The request with what it leaves out: the manifest or unit that is there, and the release of its image.

    `files` are those of MANIFEST, UNITS and the request's own that exist.  Raises RefusedError, InputError.
    """
    if not request.manifest and not request.unit:
        there = next((path for path in (MANIFEST, *UNITS) if path in files), "")
        if not there:
            raise RefusedError(
                f"{NAME} is not on this host: neither {MANIFEST} nor {UNITS[0]} is there",
                fix="run it on a control-plane node, or name what starts it: --manifest PATH or --unit PATH",
            )
        request = replace(request, manifest=there) if there == MANIFEST else replace(request, unit=there)
    version = request.server_version
    if not version and request.manifest in files:
        try:
            version = image_version(files, request.manifest)
        except Refusal as refusal:
            raise RefusedError(refusal.problem.what, fix=refusal.problem.fix) from None
    if not version:
        raise InputError(
            "the release of kube-scheduler is not known", expected="such as 1.34", fix="give it: --server-version 1.34"
        )
    return replace(request, server_version=version)


def scheduler_component(request: SchedulerRequest, rules: SchedulerRules) -> Component:
    """What is asked, for whoever reads and writes the files of a host."""
    root = request.manifest or request.unit
    return Component(
        name=NAME,
        root=root,
        label=f"{NAME} {root}",
        files=lambda files: scheduler_files(files, request, rules),
        configure=lambda files: configure_scheduler(files, request, rules),
        unconfigure=lambda files, undo: unconfigure_scheduler(files, request, rules, undo),
        activation=lambda files, edit: scheduler_activation(files, edit, request),
    )


def scheduler_activation(files: Mapping[str, bytes], edit: Edit, request: SchedulerRequest) -> Activation:
    """The kubelet starts a static pod anew by itself, and is awaited; a unit is restarted."""
    after = {path: data for path, data in {**files, **edit.changes}.items() if data is not None}
    found = Activation(
        unit="kubelet.service",
        verb="await",
        process=NAME,
        config=request.manifest or request.unit,
        health=_health(host_of(after, request).flags, minor_of(request.server_version)),
        disrupts=f"{NAME} of this node restarts; pods wait for their node until it, or another one, leads again",
    )
    if request.unit:
        unit = posixpath.basename(request.unit)
        return replace(found, unit=unit, verb="restart", process="", reread=units_changed(edit))
    return found


def _health(flags: Sequence[Flag], minor: int) -> tuple[tuple[str, ...], ...]:
    """How to ask where it answers without a password.  Source: cmd/kube-scheduler/app/options."""
    secure = last_value(flags, "secure-port") or "10259"
    address = last_value(flags, "bind-address") or "127.0.0.1"
    if secure == "0" or minor < 13:
        secure, address = "", last_value(flags, "address") or "127.0.0.1"
    port = secure or (last_value(flags, "port") or "10251" if minor < 23 else "0")
    return asks("https" if secure else "http", address, port)
