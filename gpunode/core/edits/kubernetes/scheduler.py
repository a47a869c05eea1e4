"""gpushare's extender in a kube-scheduler: its configuration, and the static pod or systemd unit that names it.

Files → files, as for container engines: `scheduler_target`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

from gpunode.core.edits.kubernetes import scheduler_pod
from gpunode.core.edits.kubernetes.scheduler_config import Extender, merged_config, new_config, without_extender
from gpunode.core.edits.kubernetes.scheduler_pod import Pod, pod_of
from gpunode.core.edits.target import KUBEADM, Activation, EditTarget, Files, Records, Refusal, asks, units_changed
from gpunode.core.edits.text import yamltext
from gpunode.core.edits.text.unitfile import FOLDERS, UnitProgram, change_program, program_of, unit_patterns
from gpunode.core.edits.undo import put
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.facts.flags import Flag, change_flags, flags_in, last_value
from gpunode.core.knowledge.scheduler import SchedulerRules, minor_of
from gpunode.core.knowledge.support import refuse_old, untried
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Edit, Reason

NAME = "kube-scheduler"
PREFIX = "/gpushare-scheduler"  # of the extender's URL: its pkg/routes/routes.go
_VIRTUAL_IPS = "https://kubernetes.io/docs/reference/networking/virtual-ips/"


@dataclass(frozen=True, kw_only=True)
class SchedulerRequest:
    """What is asked: which kube-scheduler (a manifest or a unit), of which release, and where the extender answers.

    `extender_url` "" keeps that of a gpushare extender which is there, else it follows from `proxy_mode`, the mode of
    kube-proxy: a NodePort (0: the usual one) answers on 127.0.0.1 with iptables alone.  `config` is where a new
    configuration goes.
    """

    server_version: str = ""
    manifest: str = ""
    unit: str = ""
    extender_url: str = ""
    proxy_mode: Literal["", "iptables", "ipvs", "nftables"] = ""
    node_port: int = 0
    node_address: str = ""
    config: str = ""


def _patterns(files: Files, request: SchedulerRequest, rules: SchedulerRules) -> tuple[str, ...]:
    found = [request.config or rules.config_file]
    if request.unit:
        found += unit_patterns(files, request.unit)
    else:
        found += [request.manifest, f"{posixpath.dirname(request.manifest)}/kube-apiserver.yaml"]
    if (request.manifest or request.unit) not in files:
        return tuple(found)
    try:
        host = host_of(files, request)
        if path := last_value(host.flags, "config"):
            found.append(host.path_of(path))
    except Refusal:  # configure says it
        pass
    return tuple(found)


def _check_request(request: SchedulerRequest) -> None:
    if request.server_version:
        minor_of(request.server_version)
    if bool(request.manifest) == bool(request.unit):
        raise InputError("a static pod's manifest or a unit", expected="one of the two", fix="--manifest or --unit")
    for path in (request.manifest, request.unit, request.config):
        if path and (not path.startswith("/") or posixpath.normpath(path) != path or not path.isprintable()):
            raise InputError(f"path {path!r}", expected="an absolute, normalised path")
    if request.extender_url and not is_url(request.extender_url):
        expected = "http://HOST:PORT/gpushare-scheduler or https://…, without blanks"
        raise InputError(f"extender URL {request.extender_url!r}", expected=expected)


def is_url(text: str) -> bool:
    """Whether an extender can be asked there."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    right = url.scheme in ("http", "https") and bool(url.hostname)
    return right and not set(" ?#") & set(text) and text.isprintable()


def with_prefix(url: str) -> str:
    """The URL of an extender as kube-scheduler needs it, whether its path is given or not."""
    return f"{url.rstrip('/').removesuffix(PREFIX)}{PREFIX}"


# ---------------------------------------------------------------- who starts it


@dataclass(frozen=True)
class Host:
    """What starts the scheduler, a static pod or a unit, with its flags."""

    pod: Pod | None
    program: UnitProgram | None

    @property
    def words(self) -> list[str]:
        return list(self.pod.words) if self.pod else self.program.words if self.program else []

    @property
    def flags(self) -> list[Flag]:
        return flags_in(self.words)

    def path_of(self, path: str) -> str:
        """Where a file that a flag names is on the host; of a file that is not mounted, where it would be."""
        return (scheduler_pod.host_path(self.pod, path) if self.pod else None) or path


def host_of(files: Mapping[str, bytes], request: SchedulerRequest) -> Host:
    """What starts the scheduler; RefusedError where it is not there, Refusal where it is something else."""
    path = request.manifest or request.unit
    if path not in files:
        raise RefusedError(f"{path} is not there", fix=f"name what starts {NAME}: --manifest PATH or --unit PATH")
    if request.manifest:
        return Host(pod_of(path, files[path]), None)
    return Host(None, program_of(files, path, NAME))


def image_version(files: Mapping[str, bytes], manifest: str) -> str:
    """The release that the manifest's image names, "" where it names none."""
    image = pod_of(manifest, files[manifest]).image
    found = re.search(r":(v?1\.\d+[^@/:]*)(@|\Z)", image)
    return found[1] if found else ""


# ---------------------------------------------------------------- configuring


def _configured(files: Mapping[str, bytes], request: SchedulerRequest, rules: SchedulerRules) -> Edit:
    refuse_old("kubernetes", request.server_version, rules.support)
    if "/rke2/" in request.manifest:
        raise Refusal(
            f"RKE2 writes {request.manifest} again at every start",
            "set kube-scheduler-arg and kube-scheduler-extra-mount in /etc/rancher/rke2/config.yaml",
        )
    host = host_of(files, request)
    extender = _extender_of(files, request, rules)
    path, data, reasons = _configuration(files, host, request, extender)
    place = host.path_of(path)
    after, kept = {**files, place: data}, files.get(place) == data and last_value(host.flags, "config") == path
    reasons += _name_it(after, host, extender, path, file=place, kept=kept)
    changes = {path: data for path, data in after.items() if files.get(path) != data}
    return Edit(changes=dict(changes), reasons=(*reasons, *_notes(files, host, request, extender)) if changes else ())


def _configuration(
    files: Mapping[str, bytes], host: Host, request: SchedulerRequest, extender: Extender
) -> tuple[str, bytes, tuple[Reason, ...]]:
    """The configuration's path as the scheduler sees it, its bytes, and why."""
    if config := last_value(host.flags, "config"):
        if (place := host.path_of(config)) not in files:
            raise Refusal(f"{place}, which {NAME} is given, is not there", "create it, or take the flag away")
        return (config, *merged_config(place, files[place], extender))
    path = request.config or extender.rules.config_file
    if files.get(path, b"").strip():  # made by hand, and not named yet
        return (path, *merged_config(path, files[path], extender))
    why = f"a configuration of {extender.rules.api}"
    return path, new_config(extender, host.flags), (Reason(what=path, why=why, source=extender.rules.api_source),)


def _name_it(
    after: dict[str, bytes], host: Host, extender: Extender, path: str, *, file: str, kept: bool
) -> tuple[Reason, ...]:
    """Flags and mounts: `path` named, the host's `file` mounted unless `kept`, what is gone taken away; in `after`."""
    gone = extender.rules.gone_flags(extender.minor)
    drop = {one.name for one in host.flags if one.name in gone}
    change = change_flags(host.words, drop=drop, want={"config": path})
    reasons = [
        Reason(
            what=f"--{name}",
            why=f"{NAME} 1.{extender.minor} has it no more: {gone[name].instead}",
            source=gone[name].source,
        )
        for name in sorted(drop)
    ]
    if change.more or change.rewritten:
        reasons.append(Reason(what="--config", why=f"names {path}", source=extender.rules.api_source))
    if host.program:
        after |= change_program(after, host.program, change)
    elif host.pod:
        pod = scheduler_pod.with_words(host.pod, change)
        if not kept:
            pod, more = scheduler_pod.with_file(pod, path, file)
            reasons += more
        after[host.pod.path] = pod.text.encode()
    return tuple(reasons)


# ---------------------------------------------------------------- where the extender answers


def _extender_of(files: Mapping[str, bytes], request: SchedulerRequest, rules: SchedulerRules) -> Extender:
    """A NodePort answers on 127.0.0.1 with kube-proxy's iptables mode and IPv4 alone; else on the node's address."""
    loopback = request.proxy_mode in ("", "iptables") and ":" not in _advertised(files, request)
    address = "127.0.0.1" if loopback else request.node_address or _advertised(files, request)
    if ":" in address:
        address = f"[{address}]"
    default = f"http://{address}:{request.node_port or rules.node_port}{rules.url_path}" if address else ""
    return Extender(minor_of(request.server_version), request.extender_url, default, rules, loopback=loopback)


def _advertised(files: Mapping[str, bytes], request: SchedulerRequest) -> str:
    """The address of this node by the API server's manifest beside the scheduler's, "" where it does not say."""
    neighbours = f"{posixpath.dirname(request.manifest)}/kube-apiserver.yaml" if request.manifest else ""
    if neighbours not in files:
        return ""
    try:
        containers = yamltext.value_at(yamltext.parse(neighbours, files[neighbours])[1], ("spec", "containers", 0))
    except InputError:
        return ""
    command = yamltext.value_at(containers, ("command",))
    words = [str(word) for word in command] if isinstance(command, list) else []
    address = last_value(flags_in(words), "advertise-address") or ""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


def _notes(files: Mapping[str, bytes], host: Host, request: SchedulerRequest, extender: Extender) -> tuple[Reason, ...]:
    """What a reader should know besides."""
    notes = []
    if new := untried("kubernetes", request.server_version, extender.rules.support):
        notes.append(Reason(what=NAME, why=new))
    if not request.extender_url and not request.proxy_mode:
        why = "answers with kube-proxy's iptables mode alone; with another one give --extender-url"
        notes.append(Reason(what=extender.default, why=why, source=_VIRTUAL_IPS))
    if request.manifest == MANIFEST:
        why = "is rewritten by kubeadm upgrade: run this again afterwards"
        notes.append(Reason(what=MANIFEST, why=why, source=f"{KUBEADM}kubeadm-upgrade/"))
    if host.pod and (version := image_version(files, host.pod.path)) and minor_of(version) != extender.minor:
        why = f"the manifest's image is {version}, and 1.{extender.minor} was asked for"
        notes.append(Reason(what=host.pod.path, why=why))
    return tuple(notes)


# ---------------------------------------------------------------- taking it out, where a record does not do


def _without_extender(files: Files, undo: Records, request: SchedulerRequest, rules: SchedulerRules) -> Edit:
    host = host_of(files, request)
    path = last_value(host.flags, "config")
    place = host.path_of(path) if path else ""
    if place not in files:
        return Edit()
    after = dict(files)
    created = any(one[place].created for one in undo if place in one)
    data, reasons = without_extender(place, files[place], rules, created=created)
    if data is None:
        del after[place]
        change = change_flags(host.words, drop={"config"})
        if host.program:
            after |= change_program(after, host.program, change)
        elif host.pod:
            pod = scheduler_pod.without_mark(scheduler_pod.with_words(host.pod, change))
            after[host.pod.path] = scheduler_pod.without_file(pod, place).text.encode()
    else:
        after[place] = data
    changes = {path: after.get(path) for path in files if files[path] != after.get(path)}
    return Edit(changes=changes, reasons=reasons)


# ---------------------------------------------------------------- the program on a host

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
UNITS = tuple(f"{top}/kube-scheduler.service" for top in FOLDERS)


def completed(files: Mapping[str, bytes], request: SchedulerRequest) -> SchedulerRequest:
    """The request with what it leaves out: the manifest or unit that is there, and the release that its image names.

    `files` are those of MANIFEST, UNITS and the request's own that exist.  Raises RefusedError, InputError.
    """
    if not request.manifest and not request.unit:
        there = next((path for path in (MANIFEST, *UNITS) if path in files), "")
        if not there:
            raise RefusedError(
                f"{NAME} is not on this host: neither {MANIFEST} nor {UNITS[0]} is there",
                fix="run it on a control-plane node, or name what starts it: --manifest PATH or --unit PATH; "
                "k3s and RKE2 manage it themselves (kube-scheduler-arg in their config.yaml)",
            )
        request = replace(request, manifest=there) if there == MANIFEST else replace(request, unit=there)
    version = request.server_version
    if not version and request.manifest in files:
        try:
            version = image_version(files, request.manifest)
        except Refusal as refusal:
            raise RefusedError(refusal.problem.what, fix=refusal.problem.fix) from None
    return replace(request, server_version=version)


def scheduler_target(request: SchedulerRequest, rules: SchedulerRules) -> EditTarget:
    """What is asked of kube-scheduler: that it asks gpushare's extender.  Raises InputError for what makes no sense."""
    _check_request(request)
    root = request.manifest or request.unit
    return EditTarget(
        name=NAME,
        root=root,
        label=f"{NAME} {root}",
        patterns=lambda files: _patterns(files, request, rules),
        edit=lambda files: _configured(files, request, rules),
        remove=lambda files, undo: _without_extender(files, undo, request, rules),
        activation=lambda files, edit: _activation(files, edit, request),
        noticed=lambda files, edit: _noticed(files, edit, request.manifest),
    )


def _noticed(files: Files, edit: Edit, manifest: str) -> Edit:
    """The edit, with an annotation that comes or goes where the manifest would be the same, and the pod go on."""
    if not manifest or not edit.changes or manifest in edit.changes:
        return edit
    mark = hashlib.sha256(b"".join(data or b"" for data in edit.changes.values())).hexdigest()[:16]
    data = scheduler_pod.with_other_mark(pod_of(manifest, files[manifest]), mark).text.encode()
    why = Reason(what=manifest, why="an annotation makes the kubelet restart the pod")
    return replace(edit, changes={**edit.changes, manifest: data}, reasons=(*edit.reasons, why))


def _activation(files: Files, edit: Edit, request: SchedulerRequest) -> Activation:
    """The kubelet restarts a static pod by itself, and is awaited; a unit is restarted."""
    found = Activation(
        unit="kubelet.service",
        verb="await",
        process=NAME,
        config=request.manifest or request.unit,
        health=_health(host_of(put(files, edit.changes), request).flags),
        disrupts=f"{NAME} of this node restarts; pods wait for their node until it, or another one, leads again",
        settle=10,
    )
    if request.unit:
        unit = posixpath.basename(request.unit)
        return replace(found, unit=unit, verb="restart", process="", reread=units_changed(edit))
    return found


def _health(flags: Sequence[Flag]) -> tuple[tuple[str, ...], ...]:
    """How to ask where it answers without a password.  Source: cmd/kube-scheduler/app/options."""
    address, port = last_value(flags, "bind-address"), last_value(flags, "secure-port")
    return asks("https", address or "127.0.0.1", port or "10259")
