"""The static pod of a kube-scheduler, as kubeadm writes it and people change it: its words, its files, its mounts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import yamltext
from gpunode.core.facts.flags import WordChange, apply_words, words_in
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Reason
from gpunode.core.plain import mapping, mappings

_NAME = "kube-scheduler"
_VOLUME = "scheduler-config"
_MARK = "gpunode-scheduler-config"  # an annotation: another hash has the kubelet start the pod again
_FIX = "fix the manifest, then run again"


@dataclass(frozen=True)
class Pod:
    """A manifest: its text and values, which container is the scheduler's, and where its words stand.

    `places` has for every word the path of the item it is, and its number within that item where it is one of several.
    """

    path: str
    text: str
    data: Mapping[str, Any]
    container: int
    words: tuple[str, ...]
    places: tuple[tuple[tuple[str | int, ...], int | None], ...]

    @property
    def at(self) -> tuple[str | int, ...]:
        return ("spec", "containers", self.container)

    @property
    def image(self) -> str:
        return str(yamltext.value_at(self.data, (*self.at, "image")) or "")


def pod_of(path: str, data: bytes) -> Pod:
    """The manifest's Pod; Refusal for what is no Pod of a kube-scheduler, InputError for what is no YAML."""
    text, stated = yamltext.parse(path, data)
    if stated.get("kind") != "Pod":
        raise Refusal(f"{path} holds {stated.get('kind') or 'no kind'}, not Pod", f"name the static pod of {_NAME}")
    containers = yamltext.value_at(stated, ("spec", "containers"))
    for at, container in enumerate(containers if isinstance(containers, list) else []):
        if not isinstance(container, dict):
            raise Refusal(f"{path}: spec.containers[{at}] is no mapping", _FIX)
        words, places = _words(path, container, at)
        named = any(posixpath.basename(word) == _NAME for word in words)
        if named or (words and container.get("name") == _NAME):
            return Pod(path, text, stated, at, words, places)
    raise Refusal(f"{path}: no container runs {_NAME}", f"name the static pod of {_NAME}: --manifest PATH")


def _words(path: str, container: Mapping[str, Any], at: int) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    words: list[str] = []
    places: list[tuple[tuple[str | int, ...], int | None]] = []
    for key in ("command", "args"):
        items = container.get(key)
        if items is not None and (not isinstance(items, list) or not all(isinstance(item, str) for item in items)):
            raise Refusal(f"{path}: {key} of container {at} is no list of text", _FIX)
        for number, item in enumerate(items or ()):
            place = ("spec", "containers", at, key, number)
            inner = words_in(item, sh=True)
            if len(inner) > 1 and any(posixpath.basename(word.text) == _NAME for word in inner):
                words += [word.text for word in inner]
                places += [(place, one) for one in range(len(inner))]
            else:
                words.append(item)
                places.append((place, None))
    return tuple(words), tuple(places)


# ---------------------------------------------------------------- changing it


def with_words(pod: Pod, change: WordChange) -> Pod:
    """The manifest with a change of the scheduler's words; new ones come at the end of its list, or into its script."""
    if change.nothing:
        return pod
    text = pod.text
    for at in sorted({*change.gone, *change.rewritten}, reverse=True):
        place, inner = pod.places[at]
        if inner is None:
            gone = at in change.gone
            text = yamltext.remove(text, place) if gone else yamltext.set_value(text, place, change.rewritten[at])
    parts = change.apart([(place, inner or 0) for place, inner in pod.places])
    scripts = {place: parts[place] for place, inner in pod.places if inner is not None and place in parts}
    if change.more:
        place, inner = pod.places[max(change.after, 0)]
        if inner is not None:
            scripts[place] = replace(scripts.get(place, WordChange()), more=change.more, after=inner)
        else:
            last = pod.places[-1][0]
            for word in change.more:
                text = yamltext.append(text, last[:-1], word)
    for place, part in scripts.items():

        def edited(script: str, change: WordChange = part) -> str:
            return apply_words(script, words_in(script, sh=True), change)

        text = yamltext.in_scalar(text, place, edited)
    return pod_of(pod.path, text.encode())


# ---------------------------------------------------------------- the files it sees


def host_path(pod: Pod, path: str) -> str | None:
    """Where a path of the container is on the host, None where it is not mounted.

    Refusal where it lies in a volume that is no place of the host's.
    """
    mounts = mappings(yamltext.value_at(pod.data, pod.at), "volumeMounts")
    above = [one for one in mounts if f"{path}/".startswith(f"{_top(one)}/")]
    if not above:
        return None
    best = sorted(above, key=lambda one: len(_top(one)))[-1]
    volume = next((one for one in _volumes(pod) if one.get("name") == str(best.get("name"))), {})
    source = yamltext.value_at(volume, ("hostPath", "path"))
    if not isinstance(source, str):
        raise Refusal(f"{pod.path}: {path} lies in the volume {best.get('name')}, which is no hostPath", _FIX)
    rest = path[len(_top(best)) :].lstrip("/")
    return posixpath.normpath(posixpath.join(source, str(best.get("subPath") or ""), rest))


def _top(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath", "")).rstrip("/")


def _volumes(pod: Pod) -> list[Mapping[str, Any]]:
    return mappings(mapping(pod.data, "spec"), "volumes")


def with_file(pod: Pod, path: str, file: str) -> tuple[Pod, tuple[Reason, ...]]:
    """The manifest with the host's `file` mounted at `path`, read-only, and as a file that has to be there."""
    source = "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types"
    if host_path(pod, path) is not None:
        return _as_file(pod, file, source)
    names = [str(one.get("name")) for one in _volumes(pod)]
    same = [str(one.get("name")) for one in _volumes(pod) if yamltext.value_at(one, ("hostPath", "path")) == file]
    if same:
        text, name = pod.text, same[0]
    else:
        name = next(n for n in (_VOLUME, *(f"{_VOLUME}-{i}" for i in range(2, 99))) if n not in names)
        volume = {"hostPath": {"path": file, "type": "File"}, "name": name}
        text = yamltext.append(pod.text, ("spec", "volumes"), volume)
    mount = {"mountPath": path, "name": name, "readOnly": True}
    text = yamltext.append(text, (*pod.at, "volumeMounts"), mount)
    why = f"the volume {name} shows it to the scheduler's container"
    made, more = _as_file(pod_of(pod.path, text.encode()), file, source)
    return made, (Reason(what=file, why=why, source=source), *more)


def _as_file(pod: Pod, file: str, source: str) -> tuple[Pod, tuple[Reason, ...]]:
    """With type File in place of FileOrCreate, which makes an empty file where there is none."""
    volumes = yamltext.value_at(pod.data, ("spec", "volumes"))
    for at, volume in enumerate(volumes if isinstance(volumes, list) else []):
        host = yamltext.value_at(volume, ("hostPath", "path"))
        if host == file and yamltext.value_at(volume, ("hostPath", "type")) == "FileOrCreate":
            text = yamltext.set_value(pod.text, ("spec", "volumes", at, "hostPath", "type"), "File")
            why = "type File in place of FileOrCreate, which makes an empty configuration where there is none"
            return pod_of(pod.path, text.encode()), (Reason(what=file, why=why, source=source),)
    return pod, ()


def without_file(pod: Pod, file: str) -> Pod:
    """The manifest without the mount and the volume of exactly this file."""
    text = pod.text
    names = [str(one.get("name")) for one in _volumes(pod) if yamltext.value_at(one, ("hostPath", "path")) == file]
    for place in ((*pod.at, "volumeMounts"), ("spec", "volumes")):
        items = yamltext.value_at(pod.data, place)
        for at in reversed(range(len(items) if isinstance(items, list) else 0)):
            if mapping(items[at]).get("name") in names:
                text = yamltext.remove(text, (*place, at))
    return pod_of(pod.path, text.encode())


def with_other_mark(pod: Pod, mark: str) -> Pod:
    """The manifest with an annotation, or without the one that is there, so that the kubelet starts the pod again."""
    if yamltext.value_at(pod.data, ("metadata", "annotations", _MARK)) is not None:
        return without_mark(pod)
    return pod_of(pod.path, yamltext.set_value(pod.text, ("metadata", "annotations", _MARK), mark).encode())


def without_mark(pod: Pod) -> Pod:
    """The manifest without that annotation."""
    text = yamltext.remove(pod.text, ("metadata", "annotations", _MARK))
    if yamltext.value_at(pod.data, ("metadata", "annotations")) and not yamltext.value_at(
        yamltext.load(text), ("metadata", "annotations")
    ):
        text = yamltext.remove(text, ("metadata", "annotations"))
    return pod_of(pod.path, text.encode())
