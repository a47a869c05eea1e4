"""k3s and RKE2: their own detection and `default-runtime` first, drop-ins and templates where those do not reach.

- The runtime `nvidia`: k3s adds it when its agent starts, where it finds nvidia-container-runtime; nothing is written.
- The default: the line `default-runtime: nvidia` in config.yaml (December 2023 and later).  There is no line for runc:
  k3s does not start with a default that it has not found, so going back removes the line.
- Another name, path or CDI setting: a drop-in, where the rendered config.toml imports them (2026 and later); else the
  user's template, or a new one that has k3s' own rendered first.
A template that names a runtime which k3s adds as well stops containerd: TOML has each table once.
Sources: see k3s_node.py.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpunode.core.edits.engine import Activation, RuntimeState
from gpunode.core.edits.engines import containerd
from gpunode.core.edits.engines.k3s_node import CRI, SETTING, Node, has
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import gotemplate, toml, yamltext
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

SOURCE = "docs.k3s.io/advanced"
SOCKET = "/run/k3s/containerd/containerd.sock"
BASE = '{{ template "base" . }}\n'
RUNC = "io.containerd.runc.v2"
_Change = dict[str, bytes | None]


class Rancher:
    """The engine that k3s or RKE2 brings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.CONFIG = f"/etc/rancher/{kind}/config.yaml"

    def patterns(self, files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
        """config.yaml and its drop-ins, the rendered file, templates, and containerd's drop-ins."""
        node = Node(self.kind, files, request)
        names = (
            "config.toml",
            "config.toml.tmpl",
            "config-v3.toml.tmpl",
            "config.toml.d/*.toml",
            "config-v3.toml.d/*.toml",
        )
        settings = (node.config, f"{node.config}.d/*.yaml", f"{node.config}.d/*.yml")
        asked = (request.config,) if request.config.endswith(".tmpl") else ()
        return (*settings, *asked, *(f"{node.folder}/{name}" for name in names))

    def configure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """What changes; an Edit with `restart` alone where the agent has only to start again."""
        node = Node(self.kind, files, request)
        _check_fixed(node)
        asked = bool(request.drop_in) or not node.finds or _cdi_differs(node)
        by_drop_in = node.imports and (asked or _drop_in_says(node))
        if by_drop_in:
            changes = _by_drop_in(node, containerd.configure) | _without_twice(node)
            return _edit(node, changes | ({} if _settles_default(node) else _default(node)))
        return _edit(node, _by_template(node) | (_default(node) if node.extends else {}))

    def unconfigure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """Takes back the setting and what drop-ins and templates name; what k3s finds, it adds again."""
        node = Node(self.kind, files, request)
        changes = _by_drop_in(node, containerd.unconfigure) if node.dropped else {}
        if node.template:
            changes |= _without(node)
        setting = node.setting(SETTING)
        if setting and setting.value == request.name:
            changes |= _removed(node)
        stays = Reason(
            what=f"the runtime {request.name}",
            why=f"{self.kind} adds it at every start, as long as it finds nvidia-container-runtime",
            source=SOURCE,
        )
        return Edit(
            changes={path: data for path, data in changes.items() if files.get(path) != data},
            reasons=(
                *_reasons(changes, "no longer names the nvidia runtime"),
                *([stays] if node.finds and node.extends else []),
            ),
            meant=_meant(node),
        )

    def state(self, files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
        """What containerd was started with; before the first start, what the settings will give."""
        node = Node(self.kind, files, request)
        found = node.in_force
        setting = node.setting(SETTING)
        return replace(
            found,
            default=setting.value if setting and not node.root else found.default,
            files=tuple(
                path for path in (*node.documents, node.rendered, node.template, *node.dropped) if path in files
            ),
        )

    def activation(self, facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
        """config.toml is rendered, and containerd started, when the service starts."""
        server = "rke2-server" if self.kind == "rke2" else "k3s"
        unit = runtime.unit or f"{server}.service"
        socket = runtime.socket or SOCKET
        dropped = next((path for path in edit.changes if ".toml.d/" in path), "")
        rendered = f"{posixpath.dirname(posixpath.dirname(dropped))}/config.toml"
        away = f"restarts {unit}: running containers keep running, Kubernetes on this node is away for up to a minute"
        return Activation(
            unit=unit,
            verb="restart",
            config=runtime.config,
            validate=(runtime.binary, "-c", rendered, "config", "dump") if dropped and runtime.binary else (),
            socket=socket,
            plugin="cri",
            health=(
                ("k3s", "ctr", "--address", socket, "version"),  # rke2 has no such command
                (f"/var/lib/rancher/{self.kind}/bin/ctr", "--address", socket, "version"),
                ("ctr", "--address", socket, "version"),
            ),
            disrupts=away if edit.changes or edit.restart else "",
        )


k3s, rke2 = Rancher("k3s"), Rancher("rke2")


# ---------------------------------------------------------------- what cannot be


def _check_fixed(node: Node) -> None:
    """Raise Refusal for what k3s decides by itself, and for what its version cannot do."""
    asked, have = node.request.cgroup_driver, node.in_force.cgroup_driver
    if asked and have and asked != have:
        raise Refusal(
            f"containerd of {node.kind} has the cgroup driver {have}, as {node.kind} has decided: it cannot be {asked}",
            f"leave cgroup_driver at auto, and cgroup-driver out of kubelet-arg: {node.kind} sets both alike",
        )
    if node.request.drop_in and not node.reads(node.request.drop_in):
        raise Refusal(
            f"containerd of {node.kind} does not read {node.request.drop_in}",
            f"leave the drop-in out; releases of 2026 and later read {node.drop_ins}/*.toml",
        )
    if _cdi_differs(node) and not node.imports and node.own_template:
        raise Refusal(
            f"{node.kind} has its own setting of CDI, and this version has no drop-ins for containerd",
            f"update {node.kind}, or leave cdi out",
        )


def _cdi_differs(node: Node) -> bool:
    asked, root = node.request.cdi, node.root
    if asked is None:
        return False
    plugin = toml.lookup(root, ("plugins", CRI[3 if root.get("version") == 3 else 2])) or {}
    return bool(plugin.get("enable_cdi", node.two)) is not asked


def _drop_in_says(node: Node) -> bool:
    """Whether a drop-in names the runtime, or a default one."""
    for path, data in node.dropped.items():
        for plugin in CRI.values():
            section = toml.lookup(toml.parse(path, data)[1], ("plugins", plugin, "containerd")) or {}
            if "default_runtime_name" in section or node.request.name in section.get("runtimes", {}):
                return True
    return False


# ---------------------------------------------------------------- containerd's drop-ins


def _settles_default(node: Node) -> bool:
    """Whether the default stands in a drop-in: the setting takes only what k3s finds, and a drop-in overrules it."""
    return not node.finds or any(b"default_runtime_name" in data for data in node.dropped.values())


def _by_drop_in(node: Node, edit: Callable[[Mapping[str, bytes], RuntimeRequest], Edit]) -> _Change:
    """What containerd's own editor makes of the drop-ins below the rendered file."""
    files, asked = node.as_containerd()
    if not _settles_default(node):
        asked = replace(asked, default_runtime="keep")
    found = edit(files, asked)
    if found.problems:
        raise Refusal(found.problems[0].what, found.problems[0].fix)
    return {path: data for path, data in found.changes.items() if path != node.rendered}


# ---------------------------------------------------------------- templates


def _by_template(node: Node) -> _Change:
    """The user's template, or a new one, where k3s' detection does not reach; {} where it does."""
    if not node.extends:
        return _whole(node, containerd.configure)
    if node.finds:
        return _without_twice(node)
    if node.found and not node.owns:
        raise Refusal(
            f"{node.kind} has found the runtime {node.request.name} at {node.found}, not at {node.request.path}",
            "ask for that path, or remove the other nvidia-container-runtime from the PATH of the service",
        )
    if not has("base template", node.request.version):
        raise Refusal(
            f"the {node.kind} with containerd {node.request.version} has no template to build on",
            f"update {node.kind}, or install nvidia-container-runtime in /usr/bin",
        )
    plugin = (*node.section, "runtimes", node.request.name)
    sets: dict[toml.Path, Any] = {
        (*plugin, "runtime_type"): RUNC,
        (*plugin, "options", "BinaryName"): node.request.path,
        (*plugin, "options", "SystemdCgroup"): gotemplate.field(".SystemdCgroup"),
    }
    if node.owns:
        del sets[(*plugin, "options", "SystemdCgroup")]
    template = node.parsed if node.template else gotemplate.read(BASE)
    return {node.new_template: template.edited(toml.edit(template.toml, sets)).encode()}


def _whole(node: Node, edit: Callable[[Mapping[str, bytes], RuntimeRequest], Edit]) -> _Change:
    """A template that says everything itself: containerd's config, with actions in it."""
    runtimes = node.own.get("runtimes", {})
    _, asked = node.as_containerd(in_place=True)
    found = edit({node.template: node.parsed.toml.encode()}, replace(asked, config=node.template, drop_in=""))
    if found.problems:
        raise Refusal(found.problems[0].what, found.problems[0].fix)
    data = found.changes.get(node.template)
    if data is None:
        return {}
    text, name = data.decode(), node.request.name
    options = (*node.section, "runtimes", name, "options", "SystemdCgroup")
    if name not in runtimes and not node.request.cgroup_driver and toml.lookup(tomllib.loads(text), options):
        text = toml.edit(text, {options: gotemplate.field(".SystemdCgroup")})  # as runc's, which it comes from
    return {node.template: node.parsed.edited(text).encode()}


def _without_twice(node: Node) -> _Change:
    """The template without the table that k3s adds as well; {} where it has none."""
    return _without(node) if node.finds and node.owns and node.extends else {}


def _without(node: Node) -> _Change:
    """The template without the runtime's table and without it as the default."""
    if not node.extends:
        return _whole(node, containerd.unconfigure)
    section = node.section
    removes: list[toml.Path] = [(*section, "runtimes", node.request.name)] if node.owns else []
    if node.own.get("default_runtime_name") == node.request.name:
        removes.append((*section, "default_runtime_name"))
    text = toml.edit(node.parsed.toml, removes=removes)
    return {node.template: node.parsed.edited(text).encode()} if removes else {}


# ---------------------------------------------------------------- the default runtime


def _default(node: Node) -> _Change:
    """The setting in config.yaml, or the line of a template that names a default itself."""
    wish = {"nvidia": node.request.name, "runc": "", "keep": None}[node.request.default_runtime]
    if wish is None:
        return {}
    setting = node.setting(SETTING)
    if "default_runtime_name" in node.own:
        return _default_in_template(node, wish or "runc")
    if not node.own_template and not node.parsed.uses(".DefaultRuntime"):  # the setting would say nothing to containerd
        return _default_in_template(node, wish) if wish else {}
    if (setting.value if setting else "") == wish:
        return {}
    if setting and not setting.path:
        raise Refusal(
            f"the service of {node.kind} is started with --{SETTING} {setting.value}",
            f"take --{SETTING} out of its unit (ExecStart), then run again",
        )
    if not wish:
        return _removed(node)
    if not has("default-runtime", node.request.version) or not node.finds:
        why = "is not one that it finds by itself" if not node.finds else "cannot be set in this version"
        raise Refusal(
            f"the default runtime {wish} of {node.kind} {why}",
            "set default_runtime to keep, and name the runtime in pods (runtimeClassName), or update",
        )
    path = setting.path if setting else node.config
    text = node.documents[path][0] if path in node.documents else ""
    return {path: yamltext.set_key(text, SETTING, wish).encode()}


def _removed(node: Node) -> _Change:
    """All config files without the setting."""
    texts = {path: yamltext.remove_key(text, SETTING) for path, (text, _) in node.documents.items()}
    return {path: text.encode() for path, text in texts.items()}


def _default_in_template(node: Node, wish: str) -> _Change:
    """default_runtime_name of the user's own line, which k3s' own template must not have as well."""
    if node.setting(SETTING) and node.own_template:
        raise Refusal(
            f"{SETTING} is set, and {node.template} names a default runtime as well: containerd does not start so",
            f"remove default_runtime_name and its table from {node.template}",
        )
    path = (*node.section, "default_runtime_name")
    text = toml.edit(node.parsed.toml, {path: wish})
    return {node.template: node.parsed.edited(text).encode()}


# ---------------------------------------------------------------- the outcome


def _edit(node: Node, changes: _Change) -> Edit:
    changes = {path: data for path, data in changes.items() if node.files.get(path) != data}
    waits = not changes and bool(node.root) and _rendered_differs(node)
    why = f"was rendered before {node.kind} had the nvidia runtime: it has to start again"
    return Edit(
        changes=changes,
        restart=waits,
        reasons=(
            *_reasons(changes, "gives containerd the nvidia runtime"),
            *([Reason(what=node.rendered, why=why, source=SOURCE)] if waits else []),
        ),
        meant=_meant(node),
    )


def _rendered_differs(node: Node) -> bool:
    wish = {"nvidia": node.request.name, "runc": "runc", "keep": ""}[node.request.default_runtime]
    found = node.in_force
    return not found.path or (bool(wish) and (found.default or "runc") != wish)


def _reasons(changes: _Change, why: str) -> list[Reason]:
    said = {"config.yaml": f"sets {SETTING}"}
    return [Reason(what=path, why=said.get(posixpath.basename(path), why), source=SOURCE) for path in sorted(changes)]


def _meant(node: Node) -> tuple[str, ...]:
    section = ".".join(node.section)
    cdi = [f"{'.'.join(node.section[:2])}.enable_cdi"] if node.request.cdi is not None else []
    return (f"{section}.runtimes.{node.request.name}", f"{section}.default_runtime_name", *cdi)
