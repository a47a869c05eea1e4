"""Read what plans need from this machine and the network: knowledge, gpunode.yml, repository keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.knowledge import Knowledge, parse_knowledge
from gpunode.core.model import Repository
from gpunode.core.openpgp import fingerprints
from gpunode.core.spec import Spec

TABLES = ("gpus", "drivers", "cuda", "repos")
KEY_LIMIT = 1 << 20  # bytes; OpenPGP keys of repositories have some thousand
KEY_SECONDS = 20


@cache
def load_knowledge() -> Knowledge:
    """The package's knowledge/*.toml."""
    folder = files("gpunode") / "knowledge"
    return parse_knowledge(*(tomllib.loads((folder / f"{n}.toml").read_text(encoding="utf-8")) for n in TABLES))


def load_spec_data(path: str | Path) -> dict[str, Any]:
    """The plain data of a gpunode.yml; keys are checked by core.spec.parse_spec.  Raises InputError."""
    import yaml

    path = Path(path)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_unique_loader())  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", expected="a readable file", fix="check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}", fix="correct it at the place named") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"{path} holds {type(data).__name__}", expected="a mapping", fix="see docs/spec.md")
    return data


def resolve_key(repository: Repository, spec: Spec) -> bytes:
    """The repository's armored key, its fingerprint compared with the one that is expected.

    The spec's key is a path, the armored text itself, or a URL; without one the vendor's URL is asked.  Raises
    RefusedError when the fingerprint is another one or none is known to compare with.
    """
    where = repository.key_url
    key = _read_key(repository, where, spec.proxy)
    try:
        found = fingerprints(key)
    except GpunodeError as error:
        raise InputError(
            f"the key of {repository.name} ({_short(where)}): {error.what}",
            expected="an OpenPGP public key",
            fix=f"open {_short(where)} in a browser: is it an error page or a login?",
        ) from error
    if not repository.fingerprint:
        raise RefusedError(
            f"no fingerprint is known for the key of {repository.name} ({', '.join(found)})",
            fix=f"compare it with what the owner publishes, then set sources.{repository.name}.fingerprint",
        )
    if found != (repository.fingerprint,):
        raise RefusedError(
            f"the key of {repository.name} ({_short(where)}) has the fingerprint {', '.join(found)}",
            expected=repository.fingerprint,
            fix=f"do not trust it; if the key has rightly changed, set sources.{repository.name}.fingerprint",
        )
    return _armored(key)


def _read_key(repository: Repository, where: str, proxy: str) -> bytes:
    if where.lstrip().startswith("-----BEGIN"):
        return where.encode()
    if "://" in where and not where.startswith("file://"):
        return _fetch(repository, where, proxy)
    path = Path(where.removeprefix("file://")).expanduser()
    try:
        with path.open("rb") as file:
            return file.read(KEY_LIMIT)
    except OSError as error:
        raise InputError(
            f"the key of {repository.name}: {path}: {error.strerror}",
            expected="a readable file with an OpenPGP public key",
            fix=f"correct sources.{repository.name}.key",
        ) from error


def _fetch(repository: Repository, url: str, proxy: str) -> bytes:
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise InputError(f"the key of {repository.name}: {url}", expected="http://, https://, file:// or a path")
    handlers = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=KEY_SECONDS) as answer:
            return bytes(answer.read(KEY_LIMIT))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise GpunodeError(
            f"the key of {repository.name} cannot be fetched from {url}: {reason}",
            fix=f"check the URL and the proxy, or give the key as a file: sources.{repository.name}.key",
        ) from error


def _armored(key: bytes) -> bytes:
    """The key as apt reads it from a file that ends in .asc."""
    import base64

    if key.lstrip().startswith(b"-----BEGIN"):
        return key
    body = base64.b64encode(key).decode()
    lines = "\n".join(body[i : i + 64] for i in range(0, len(body), 64))
    begin, end = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
    return f"{begin}\n\n{lines}\n{end}\n".encode()


def _short(where: str) -> str:
    return "given in the spec" if where.lstrip().startswith("-----BEGIN") else where


def _unique_loader() -> Any:
    """PyYAML's safe loader that refuses a key given twice: YAML forbids it, PyYAML takes the last one silently."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Mapping[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} stands here a second time"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        loader.flatten_mapping(node)
        return dict(loader.construct_pairs(node, deep=True))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader
