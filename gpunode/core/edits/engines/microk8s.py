"""MicroK8s: its containerd's configuration is a template with ${…}, filled in at every start of the snap's daemon.

containerd-template.toml is TOML as it stands, the placeholders being in strings; it is edited in place, by what its
placeholders stand for.  The addon `nvidia` has the GPU Operator write into the same file: that one is left alone.
Sources: canonical/microk8s microk8s-resources/wrappers/run-containerd-with-args and default-args;
canonical/microk8s-core-addons addons/nvidia/enable.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpunode.core.edits.engines import containerd
from gpunode.core.edits.target import OPERATOR, Activation, Engine, Refusal, RuntimeRequest, RuntimeState, restarted
from gpunode.core.edits.text import toml
from gpunode.core.engines import DISTRIBUTIONS
from gpunode.core.model import Edit, NodeFacts, Runtime

CONFIG = DISTRIBUTIONS["microk8s"].config
SOURCE = "microk8s run-containerd-with-args"
_PLUGIN = "io.containerd.grpc.v1.cri"  # the template is of version 2, under containerd 2 as well
# what the snap's wrapper fills in for every node (the type is runc.v1 on cgroup v1, which containerd 2 has no more)
_MEANS = {b'"${RUNTIME}"': b'"runc"', b'"${RUNTIME_TYPE}"': b'"io.containerd.runc.v2"'}


def patterns(files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
    """The template, and what it imports."""
    return containerd.patterns(files, _as_containerd(request))


def configure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """The template with the nvidia runtime; Refusal where the addon nvidia owns that."""
    return _edited(files, request, containerd.configure)


def unconfigure(files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
    """Takes nvidia's entries out of the template, whose default is the snap's again; the addon's stay."""
    path = request.config or CONFIG
    text, doc = toml.parse(path, files.get(path, b""))
    default = ("plugins", _PLUGIN, "containerd", "default_runtime_name")
    if toml.lookup(doc, default) != request.name:
        return _edited(files, request, containerd.unconfigure)
    reset = {**files, path: toml.edit(text, {default: "${RUNTIME}"}).encode()}
    found = _edited(reset, request, containerd.unconfigure)
    return found if found.problems else replace(found, changes={path: reset[path], **found.changes})


def state(files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
    """What the template gives when the daemon starts."""
    return containerd.state(_meant(files), _as_containerd(request))


def activation(facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
    """The template is filled in when the snap's containerd starts."""
    health = (("ctr", "--address", runtime.socket, "version"), ("microk8s.ctr", "version"))
    return restarted(runtime, edit, plugin="cri", health=health)


def _as_containerd(request: RuntimeRequest) -> RuntimeRequest:
    """The request for containerd's editor, with its containerd's version where that of MicroK8s is given."""
    config, version = request.config or CONFIG, request.containerd_of("microk8s")
    return replace(request, distribution="", config=config, drop_in="", in_place=True, version=version, flags=())


def _meant(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with the values that the placeholders stand for; as many lines as before."""
    return {
        path: functools.reduce(lambda data, item: data.replace(*item), _MEANS.items(), files[path]) for path in files
    }


def _edited(
    files: Mapping[str, bytes], request: RuntimeRequest, edit: Callable[[Mapping[str, bytes], RuntimeRequest], Edit]
) -> Edit:
    asked = _as_containerd(request)
    if asked.config.endswith("/containerd.toml"):
        raise Refusal(
            f"{asked.config} is rewritten at every start of MicroK8s", f"name {CONFIG}, which it is made from"
        )
    if asked.config not in files:
        raise Refusal(f"{asked.config} is not there", "install MicroK8s first: snap install microk8s --classic")
    meant = _meant(files)
    path = containerd.state(meant, asked).path
    if path.startswith(OPERATOR) and path != request.path:
        raise Refusal(
            f"{asked.config} has the runtime {request.name} of the GPU Operator ({path})",
            "leave it to the addon, or run microk8s disable nvidia first",
        )
    found = edit(meant, asked)
    changes = {
        path: data and _carried(files.get(path, b""), meant.get(path, b""), data)
        for path, data in found.changes.items()
    }
    return replace(found, changes=changes, reasons=tuple(replace(r, source=SOURCE) for r in found.reasons))


def _carried(written: bytes, meant: bytes, edited: bytes) -> bytes:
    """The edited file with the placeholders back in every line that the edit left alone."""
    old, before, after = (data.splitlines(keepends=True) for data in (written, meant, edited))
    same = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return b"".join(b"".join(old[i1:i2] if tag == "equal" else after[j1:j2]) for tag, i1, i2, j1, j2 in same)


ENGINE = Engine(patterns, configure, unconfigure, state, activation)
