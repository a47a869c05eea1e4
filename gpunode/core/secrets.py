"""Secrets of a spec: plans, run records and messages hold references to them, nodes get the values.

A secret is the user name and password, or the query, of a URL, and every URL that came out of an Ansible vault.  Before
anything is solved or planned, each one is replaced by a reference to the key of the spec that has it:

    proxy: http://me:hunter2@proxy:3128   →   proxy: http://secret(gpunode_spec.proxy)@proxy:3128

Plans are made, compared, hashed and written with references alone; files of a node are compared after the same
replacement, so that a secret that changed is still found.  The action plugins put the values back in, from the
inventory's `gpunode_spec`, immediately before a request goes to the node.  No reference is an Ansible template.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.late import dataclass, field, regex, replace
from gpunode.core.model import NodeFacts
from gpunode.core.printable import with_texts
from gpunode.core.spec import Spec
from gpunode.core.spec.option import key_in

SHOWN = "********"
SHORTEST = 4  # characters from which on a secret is looked for in any text; a shorter one would be found everywhere

# the keys whose URL may be a secret: what gpunode passes on without having to show it
_KEYS = regex(r"proxy|sources\.[\w.-]+\.(url|key)|bundle\.url|driver\.runfile\.url|cuda\.runfiles\.[\w.-]+\.url")
_REFERENCE = regex(r"secret\(gpunode_spec\.([\w.-]+)(?:,\d+)?\)")
_URL = regex(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USERINFO = regex(r"(?<=://)[^/\s\"'<>]+(?=@)")
_QUERY = regex(r"(?<=\?).+", re.DOTALL)
_PLACEHOLDER = regex(r"\{\w+\}")


class Vaulted(str):
    """A text of the spec that came out of an Ansible vault."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The secrets of one spec: `values` by their references, `forms` to find them in other texts."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    forms: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # regular expression, what replaces it

    def __bool__(self) -> bool:
        return bool(self.values)

    def seal(self, text: str) -> str:
        """The text with references in place of secrets, and ******** in place of a password by itself."""
        text = self._referred(text)
        for word in self._words():
            text = text.replace(word, SHOWN)
        return text

    def open(self, text: str) -> str:
        """The text with its secrets.  Raises RefusedError for a reference to what is not known here."""

        def value(match: re.Match[str]) -> str:
            if match[0] not in self.values:
                raise RefusedError(
                    f"gpunode_spec.{match[1]} is not set here: the plan refers to it, and does not contain it",
                    expected=f"gpunode_spec with {match[1]}, as it was when the plan was made",
                    fix="set it in the inventory (in a vault), or give ansible-playbook a file with it: -e @FILE",
                )
            return self.values[match[0]]

        return _REFERENCE.sub(value, text)

    def open_data(self, data: Any) -> Any:
        """Plain data with its secrets."""
        return with_texts(data, self.open)

    def open_spec(self, spec: Spec) -> Spec:
        """The spec with its secrets: for what the controller itself fetches."""
        if not self:
            return spec
        sources = {n: replace(s, url=self.open(s.url), key=self.open(s.key)) for n, s in spec.sources.items()}
        cuda = {n: replace(r, url=self.open(r.url)) for n, r in spec.cuda.runfiles.items()}
        runfile = replace(spec.driver.runfile, url=self.open(spec.driver.runfile.url))
        return replace(
            spec,
            proxy=self.open(spec.proxy),
            sources=sources,
            bundle=replace(spec.bundle, url=self.open(spec.bundle.url)),
            driver=replace(spec.driver, runfile=runfile),
            cuda=replace(spec.cuda, runfiles=cuda),
        )

    def seal_facts(self, facts: NodeFacts) -> NodeFacts:
        """The facts with references in the node's files: one that has the right secret equals what is wanted."""
        if not self:
            return facts
        files = dict(facts.files)
        for path, file in facts.files.items():
            text = (file.data or b"").decode("utf-8", "surrogateescape")
            data = self._referred(text).encode("utf-8", "surrogateescape")
            if file.data and data != file.data:
                files[path] = replace(file, data=data, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return replace(facts, files=files)

    def seal_error(self, error: GpunodeError) -> GpunodeError:
        """The same error with references in its words."""
        what, expected, fix = map(self.seal, (error.what, error.expected, error.fix))
        return type(error)(what, expected=expected, fix=fix)

    def __or__(self, other: Secrets) -> Secrets:
        """Both; where they name the same key, `other` holds."""
        return Secrets(values={**self.values, **other.values}, forms=(*self.forms, *other.forms))

    def _referred(self, text: str) -> str:
        for pattern, reference in self.forms:
            text = re.sub(pattern, reference, text)
        return text

    def _words(self) -> Iterator[str]:
        """What gives a secret away by itself: all of it, its password, and that one decoded; the longest first."""
        found = set()
        for secret in self.values.values():
            if secret.startswith("/"):
                continue  # the rest of a path, which is found in any text
            _user, colon, password = secret.partition(":")
            for word in (secret, password if colon else ""):
                found |= {word, urllib.parse.unquote(word)}
        yield from sorted((word for word in found if len(word) >= SHORTEST), key=len, reverse=True)


def seal_spec(data: Any, *, where: str = "gpunode.yml", recorded: bool = False) -> tuple[Any, Secrets]:
    """Plain data of a spec → the same with references, and the secrets.

    Raises InputError for a secret where a plan has to show the value, and for a reference of a recorded spec that has
    not been replaced by its secret (`open_recorded`); with `recorded` such references stay.
    """
    walk = _Walk(where=where, recorded=recorded)
    return walk.sealed(data, ""), Secrets(values=walk.values, forms=tuple(walk.forms))


def open_recorded(data: Any, secrets: Secrets) -> Any:
    """The spec of a plan or run as it was recorded, with the secrets that are known here, each at its own key."""
    return _opened(data, "", secrets)


def is_recorded(data: Any) -> bool:
    """Whether plain data, such as a spec, has references in place of secrets.

    >>> is_recorded(["http://secret(gpunode_spec.proxy)@proxy"])
    True
    """
    found: list[object] = []
    with_texts(data, lambda text: found.extend(_REFERENCE.findall(text)))
    return bool(found)


# ---------------------------------------------------------------- the walk


@dataclass(frozen=True, kw_only=True)
class _Walk:
    where: str
    recorded: bool
    values: dict[str, str] = field(default_factory=dict)
    forms: list[tuple[str, str]] = field(default_factory=list)

    def sealed(self, data: Any, path: str) -> Any:
        if isinstance(data, Mapping):
            return {key: self.sealed(value, key_in(path, key)) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.sealed(value, path) for value in data]
        return self._text(data, path) if isinstance(data, str) else data

    def _text(self, text: str, path: str) -> str:
        if _REFERENCE.search(text):
            if self.recorded:
                return text
            raise InputError(
                f"{self.where}: {path} refers to a secret that is not known here",
                expected="the gpunode.yml that the plan was made with, or the value in the inventory's gpunode_spec",
                fix="name that file with -c",
            )
        vaulted = isinstance(text, Vaulted)
        parts = _parts(text, vaulted=vaulted)
        if not (parts or vaulted):
            return text
        if not (parts and _KEYS.fullmatch(path) and _URL.match(text)):
            raise InputError(
                f"{self.where}: {path} is a secret ({'out of a vault' if vaulted else 'a URL with a password'}), "
                "and plans show the value of this key",
                expected="secrets in proxy, bundle.url, sources.NAME.url and .key and the url of runfiles, as URLs",
                fix="take it out of the vault, or the password out of it",
            )
        shown, at = [], 0
        for part in parts:
            shown += [text[at : part.start], self._part(text[part.start : part.end], path, part)]
            at = part.end
        return "".join([*shown, text[at:]])

    def _part(self, secret: str, path: str, part: _Part) -> str:
        """The references in place of a secret part; its {placeholders} stay, as other texts have them filled in."""
        name = f"secret(gpunode_spec.{path}"
        shown, pattern, replaced = "", "", ""
        for word in re.split(r"(\{\w+\})", secret):
            if _PLACEHOLDER.fullmatch(word):
                shown, pattern = shown + word, pattern + r"([\w.+:-]+?)"
                replaced += rf"\{pattern.count('([')}"
            elif word:
                count = sum(known.startswith((f"{name})", f"{name},")) for known in self.values)
                reference = f"{name},{count})" if count else f"{name})"
                self.values[reference] = word
                shown, pattern, replaced = shown + reference, pattern + re.escape(word), replaced + reference
        self.forms.append((f"{part.behind}{pattern}{part.ahead}", replaced))
        return shown


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a URL that is secret, and what has to stand around it in another text."""

    start: int
    end: int
    behind: str = r"(?<=://)"
    ahead: str = r"(?![\w-])"


def _parts(text: str, *, vaulted: bool) -> list[_Part]:
    head = _URL.match(text)
    if vaulted:
        return [_Part(start=head.end(), end=len(text))] if head else []
    found = [_Part(start=m.start(), end=m.end(), ahead="(?=@)") for m in _USERINFO.finditer(text)]
    if head and (query := _QUERY.search(text)):
        found.append(_Part(start=query.start(), end=query.end(), behind=r"(?<=\?)"))
    return found


def _opened(data: Any, path: str, secrets: Secrets) -> Any:
    if isinstance(data, Mapping):
        return {key: _opened(value, key_in(path, key), secrets) for key, value in data.items()}
    if not isinstance(data, str):
        return data
    names = {found[0]: found[1] for found in _REFERENCE.finditer(data)}
    own = names and all(name == path and reference in secrets.values for reference, name in names.items())
    return secrets.open(data) if own else data
