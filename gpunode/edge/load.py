"""Files and URLs → values: the knowledge, gpunode.yml, and the keys of package repositories."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.knowledge import Knowledge, parse_knowledge
from gpunode.core.meant import meant
from gpunode.core.model import Repository
from gpunode.core.openpgp import fingerprints
from gpunode.core.spec import Spec, parse_spec
from gpunode.core.spec.source import SourceSpec
from gpunode.core.untrusted import check_aliases
from gpunode.edge.tables import read, table

if TYPE_CHECKING:
    import ssl

    import yaml

    from gpunode.core.accept.floors import Floor
    from gpunode.core.bundle.upstream import Upstream
    from gpunode.core.items.tuning import TuningSetting
    from gpunode.core.knowledge.kubernetes import KubeKnowledge
    from gpunode.core.knowledge.questions import Questions
    from gpunode.core.knowledge.scheduler import SchedulerRules
    from gpunode.core.knowledge.support import Support
    from gpunode.core.sharing.mig import Product

MAX_KEY = MAX_SPEC = 1 << 20  # bytes
KEY_TIMEOUT = 20  # seconds
_SOLVED = ("gpus", "drivers", "cuda", "repos", "xids")  # the files that solve() needs
KEYRINGS = ("/usr/share/keyrings", "/etc/pki/rpm-gpg")
_ARMOR = "-----BEGIN PGP"
_NOT_HERE = {  # in a line with a mistake: what is no part of gpunode.yml, or of YAML
    r"\{\{": "write the value itself: templates are read in gpunode_spec of an inventory, not in gpunode.yml",
    r"\$\{?[A-Z_]+": "write the value itself: variables of the shell are not read",
    r"!vault": "a vaulted value belongs into gpunode_spec of an inventory",
    r"^\s*\w+:[{\['\"]": "write a blank behind the colon",
    r"^---": "a file is one document: remove this line",
    r"(^|\s)(//|/\*)": "a comment begins with #, also in a file that is JSON otherwise",
}
_LOOKALIKES = dict(zip("：，｛｝［］＃“”„‘’–—\u00a0\u3000", ':,{}[]#"""\'\'--  ', strict=True))


@cache
def load_knowledge() -> Knowledge:
    """All of knowledge/*.toml that solve() needs; read once a process."""
    return read(lambda *tables: parse_knowledge(**dict(zip(_SOLVED, tables, strict=True))), *_SOLVED)


@cache
def load_kube_knowledge() -> KubeKnowledge:
    """knowledge/kubernetes.toml and the Xids; read once a process."""
    from gpunode.core.knowledge.kubernetes import parse_kube_knowledge

    return read(lambda table: parse_kube_knowledge(table, load_support()), "kubernetes")


@cache
def load_scheduler_rules() -> SchedulerRules:
    """knowledge/scheduler.toml and kube_schemas.toml; read once a process."""
    from gpunode.core.knowledge.scheduler import parse_rules

    return read(lambda rules, schemas: parse_rules(rules, schemas, load_support()), "scheduler", "kube_schemas")


@cache
def load_mig() -> tuple[Product, ...]:
    """The products of knowledge/mig.toml; read once a process."""
    from gpunode.core.sharing.mig import parse_mig

    return read(parse_mig, "mig")


@cache
def load_questions() -> Questions:
    """knowledge/questions.toml; read once a process."""
    from gpunode.core.knowledge.questions import parse_questions

    return read(parse_questions, "questions")


@cache
def load_support() -> Mapping[str, Support]:
    """knowledge/support.toml; read once a process."""
    from gpunode.core.knowledge.support import parse_support

    return read(parse_support, "support")


@cache
def load_floors() -> tuple[Floor, ...]:
    """The rows of knowledge/floors.toml; read once a process."""
    from gpunode.core.accept.floors import parse_floors

    return read(parse_floors, "floors")


@cache
def load_tuning() -> tuple[TuningSetting, ...]:
    """The rows of knowledge/tuning.toml; read once a process."""
    from gpunode.core.items.tuning import parse_tuning

    return read(parse_tuning, "tuning")


def knowledge_tables() -> dict[str, Any]:
    """The parsed files of the knowledge by name: gpus, drivers, cuda, repos, xids.  Raises InputError."""
    return {name: table(name) for name in _SOLVED}


# ---------------------------------------------------------------- gpunode.yml


def load_spec(path: str | Path) -> Spec:
    """gpunode.yml as a Spec.  Raises InputError, with the lines of its mistakes."""
    raw = _spec_bytes(path)
    return _parsed(_plain(path, raw), path, raw)


def load_checked_data(path: str | Path) -> Any:
    """The plain data of gpunode.yml (for merging with an inventory's gpunode_spec), checked.  Raises InputError."""
    raw = _spec_bytes(path)
    data = _plain(path, raw)
    _parsed(data, path, raw)
    return data


def load_spec_data(path: str | Path) -> Any:
    """The plain data of gpunode.yml: {} for an empty file; a repeated key is a mistake."""
    return _plain(path, _spec_bytes(path))


def _parsed(data: Any, path: str | Path, raw: bytes) -> Spec:
    try:
        return parse_spec(data, where="")
    except InputError as error:
        import yaml

        root = yaml.compose(raw, Loader=_loader())
        for one in (error, *error.others):
            mark = _mark(root, one.key) if root and one.key else None
            one.excerpt = _excerpt(raw, mark) if mark else ""
            one.place(f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path))
            one.fix = (_odd_text(raw, mark) if mark else "") or one.fix
        raise


def _mark(node: yaml.Node, key: str) -> yaml.Mark | None:
    """Where a key such as runtimes.docker.manage or cuda.versions[0] stands; a key may hold dots itself."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and (item := re.match(r"\[(\d+)\](.*)", key)):
        inner = node.value[int(item[1])]
        return _mark(inner, item[2].removeprefix(".")) if item[2] else inner.start_mark
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        rest = key.removeprefix(str(name.value))
        if rest == "" and key:
            return value.start_mark if isinstance(value, yaml.ScalarNode) and value.value else name.start_mark
        if rest != key and rest[0] in ".[" and (mark := _mark(value, rest.removeprefix("."))):
            return mark
    return None


def _excerpt(raw: bytes, mark: yaml.Mark) -> str:
    """The line of the mark and a caret below; what looks like a secret in it is masked."""
    from gpunode.core.mask import mask

    lines = raw.decode("utf-8", "replace").splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    masked, number = mask(line), f"{mark.line + 1}"
    caret = f"\n  {' ' * len(number)} | {' ' * mark.column}^" if masked == line and mark.column <= len(line) else ""
    return f"  {number} | {masked}{caret}" if line else ""


def _spec_bytes(path: str | Path) -> bytes:
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            expected="a YAML file (gpunode explain has its keys)",
            fix=meant_file(path, "give the path of a file that can be read"),
        ) from error
    if len(raw) > MAX_SPEC:
        raise InputError(f"{path} has {len(raw)} bytes", expected=f"at most {MAX_SPEC}", fix="is it the right file?")
    return raw


def _plain(path: str | Path, raw: bytes) -> Any:
    import yaml

    try:
        check_aliases(raw, str(path))
        data = yaml.load(raw, Loader=_loader())  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        raise _at_its_line(path, raw, error) from error
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"{path} is not YAML: {first}", expected="YAML in UTF-8", fix="fix the file") from error
    return {} if data is None else data


def _at_its_line(path: str | Path, raw: bytes, error: yaml.MarkedYAMLError) -> InputError:
    problem = error.problem or error.context or ""
    problem = f"{error.context}, {problem}" if problem.startswith("but ") else problem
    mark, fix = error.problem_mark or error.context_mark, error.note or "fix that line"
    if ("<stream end>" in problem or "unexpected end of stream" in problem) and error.context_mark:
        mark, fix = error.context_mark, "close what begins there"
    if "'\\t'" in problem:
        fix = "indent by spaces, not by tabs"
    if problem.startswith("expected <block end>") and "<block mapping start>" in problem:
        problem, fix = "this line is indented otherwise than its neighbours", "begin it in their column"
    return _marked(path, raw, mark, problem, "YAML", fix)


def _marked(path: str | Path, raw: bytes, mark: yaml.Mark | None, what: str, expected: str, fix: str) -> InputError:
    """A mistake in a YAML file at its place."""
    spot = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    found = InputError(f"{path}{spot}: {what}", expected=expected, fix=(_odd_text(raw, mark) if mark else "") or fix)
    found.excerpt = _excerpt(raw, mark) if mark else ""
    return found


def _odd_text(raw: bytes, mark: yaml.Mark) -> str:
    """What to do about a character up to that line that is no YAML and looks like it, or about a template there."""
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines()[: mark.line + 1], 1):
        code = line.partition(" #")[0]
        odd = next((char for char in code if char in _LOOKALIKES and not line.startswith("#")), "")
        if odd:
            return f"write {_LOOKALIKES[odd]!r} in place of {odd!r} in line {number}"
        if number == mark.line + 1:
            return next((fix for sign, fix in _NOT_HERE.items() if re.search(sign, code)), "")
    return ""


def inventory_mistake(source: str | Path) -> InputError | None:
    """What is wrong with a YAML inventory that Ansible reads no host from: a line that is no YAML, a group without
    `hosts`.  None where it is of another form, or nothing of this kind is wrong.
    """
    import yaml

    path = Path(source)
    if path.is_dir() and not any(path.glob("[!.]*")):
        return InputError(f"the folder {path} is empty", expected="an inventory", fix="gpunode init writes hosts.yml")
    if path.suffix not in (".yml", ".yaml") or not path.is_file():
        return None
    try:
        raw = _spec_bytes(path)
        check_aliases(raw, str(path))
        node = yaml.compose(raw, Loader=yaml.SafeLoader)  # tags of Ansible's (!vault) stay nodes
    except InputError as error:
        return error
    except yaml.MarkedYAMLError as error:
        return _at_its_line(path, raw, error)
    except (yaml.YAMLError, UnicodeError, RecursionError):
        return None
    if node is None:
        return InputError(f"{path} is empty", expected="an inventory", fix="gpunode init writes hosts.yml")
    if isinstance(node, yaml.SequenceNode):
        what, fix = "the top level is a list", "write hosts as `all: {hosts: {NAME: }}`"
        return _marked(path, raw, node.start_mark, what, "a mapping of groups", fix)
    groups = node.value if isinstance(node, yaml.MappingNode) else ()
    of_spec = {field.name for field in dataclasses.fields(Spec)} & {group.value for group, _ in groups}
    for group, within in groups:
        for key, inner in within.value if isinstance(within, yaml.MappingNode) else ():
            if key.value not in ("hosts", "children", "vars"):
                what = f"the group {group.value} has the key {key.value!r}"
                fix = f"put the hosts of {group.value} below `hosts:`"
                fix = f"is it gpunode.yml? That is given by -c {path}" if of_spec else fix
                return _marked(path, raw, key.start_mark, what, "hosts, children or vars", fix)
            if isinstance(inner, yaml.SequenceNode):
                first = next((one.value for one in inner.value if isinstance(one, yaml.ScalarNode)), "NAME")
                what, expected = f"{key.value} of the group {group.value} is a list", "a mapping"
                return _marked(path, raw, inner.start_mark, what, expected, f"write `{first}:` in place of `- {first}`")
    return None


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """A SafeLoader that refuses a key that stands twice: the first would be lost without a word."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: dict[Any, int] = {}
            for key_node, _ in node.value:
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
                if key is not None and key in seen and key != "<<":
                    what, fix = f"the key {key!r} stands here and in line {seen[key]}", "put both under one"
                    raise yaml.constructor.ConstructorError(None, None, what, key_node.start_mark, fix)
                seen[key] = key_node.start_mark.line + 1
            return super().construct_mapping(node, deep)

    # versions: 12.10 is not 12.1, and no key of gpunode.yml is a decimal number
    Loader.add_constructor("tag:yaml.org,2002:float", lambda _loader, node: str(node.value))
    return Loader


# ---------------------------------------------------------------- repository keys


def resolve_key(repository: Repository, spec: Spec) -> bytes:
    """The repository's key: the spec's, else the one in knowledge/keys, else the vendor's.

    Its fingerprint is compared with the one expected; raises RefusedError that names both, InputError for what is no
    key, GpunodeError when it cannot be had.
    """
    source = spec.sources.get(repository.name, SourceSpec())
    if source.key:
        key, where = _given_key(source.key, spec.proxy), f"sources.{repository.name}.key"
    elif (kept := _kept_key(repository.fingerprint)) is not None:
        key, where = kept, "the key that gpunode carries"
    elif repository.key_url:
        key, where = fetch(repository.key_url, spec.proxy), repository.key_url
    else:
        raise InputError(
            f"{repository.name} has no key",
            expected="an OpenPGP key",
            fix=f"set sources.{repository.name}.key (URL, path or text) and .fingerprint",
        )
    try:
        found = fingerprints(key)
    except InputError as error:
        raise InputError(f"{where}: {error.what}", expected=error.expected, fix=error.fix) from error
    if not repository.fingerprint and repository.key_sha256 and not source.key:
        return _by_its_file(key, found, repository, where)
    if not repository.fingerprint:
        raise RefusedError(
            f"the fingerprint of {repository.name}'s key is not known; {where} has {', '.join(found)}",
            expected="a fingerprint to compare with",
            fix=f"compare it with what the vendor publishes, then set sources.{repository.name}.fingerprint",
        )
    if repository.fingerprint not in found:
        raise RefusedError(
            f"{where} has the fingerprint {', '.join(found)}",
            expected=f"{repository.fingerprint} for {repository.name}",
            fix=f"if that key is right (a mirror that signs itself), set sources.{repository.name}.fingerprint to it; "
            "else it may have been tampered with",
        )
    if len(found) > 1:
        raise RefusedError(
            f"{where} holds {len(found)} keys: {', '.join(found)}",
            expected=f"{repository.fingerprint} alone, as each key in the file could sign packages",
            fix="export that one key: gpg --armor --export FINGERPRINT",
        )
    return key


def _by_its_file(key: bytes, found: Sequence[str], repository: Repository, where: str) -> bytes:
    """A key whose fingerprint nobody published: its file is the known one, and it ends with the id that names it."""
    plain = b"".join(line for line in key.splitlines(keepends=True) if not line.startswith(b"Version"))
    digest = hashlib.sha256(plain).hexdigest()
    if digest != repository.key_sha256 or len(found) != 1 or not found[0].endswith(repository.key_id):
        raise RefusedError(
            f"{where} is not the key that is known: its SHA-256 (without Version lines) is {digest}, its fingerprint "
            f"{', '.join(found)}",
            expected=f"SHA-256 {repository.key_sha256} and one fingerprint that ends in {repository.key_id}",
            fix=f"compare the key with what the vendor publishes, then set sources.{repository.name}.fingerprint",
        )
    return key


def read_key(key: str, proxy: str, wanted: Sequence[str] = ()) -> bytes:
    """A key by URL, path or text; `wanted` fingerprints are first looked for among the keyrings of this machine."""
    for path in sorted(p for folder in KEYRINGS for p in Path(folder).glob("*")) if wanted else ():
        with contextlib.suppress(InputError, OSError):
            if set(wanted) <= set(fingerprints(path.read_bytes())):
                return path.read_bytes()
    return _given_key(key, proxy)


def load_archives(distro: str, arch: str) -> tuple[Upstream, ...]:
    """The public repositories of a distribution (knowledge/archives.toml), () where none is known."""
    from gpunode.core.bundle.upstream import parse_archives

    return read(lambda table: parse_archives(table, distro, arch), "archives")


def _kept_key(fingerprint: str) -> bytes | None:
    folder = files("gpunode") / "knowledge" / "keys"
    for key in load_knowledge().keys.values():
        if fingerprint and key.fingerprint == fingerprint:
            file = folder / f"{key.id}.asc"
            return file.read_bytes() if file.is_file() else None
    return None


def _given_key(key: str, proxy: str) -> bytes:
    if key.lstrip().startswith(_ARMOR):
        return key.encode()
    if key.startswith(("http://", "https://")):
        return fetch(key, proxy)
    try:
        with Path(key).expanduser().open("rb") as file:
            data = file.read(MAX_KEY + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the key {key}: {getattr(error, 'strerror', None) or error}",
            expected="a URL, a file on this machine, or the armored text itself",
            fix=meant_file(key, "look at the path"),
        ) from error
    return _small(data, key)


def meant_file(path: str | Path, otherwise: str) -> str:
    """The question whether a file beside the one that is not there is meant, else `otherwise`."""
    name = Path(path).name
    try:
        there = [one.name for one in Path(path).expanduser().parent.iterdir()]
    except (OSError, ValueError):
        return otherwise
    return otherwise if name in there else meant(name, there, otherwise, prefix=str(path).removesuffix(name))


@cache
def _trusted() -> ssl.SSLContext:
    """What TLS is compared by: reading this machine's certificates takes longer than to ask."""
    import ssl

    return ssl.create_default_context()


def fetch(url: str, proxy: str = "") -> bytes:
    """A small file over HTTP(S): 20 s, 1 MiB, through the proxy (else the environment's); HTML is an error page."""
    import urllib.error
    import urllib.request

    proxies = {"http": proxy, "https": proxy} if proxy else None
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=_trusted())
    )
    try:
        with opener.open(url, timeout=KEY_TIMEOUT) as answer:
            data = answer.read(MAX_KEY + 1)
    except urllib.error.HTTPError as error:
        raise _not_fetched(url, f"HTTP {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise _not_fetched(url, str(reason)) from error
    if data.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise _not_fetched(url, "it answered with an HTML page (a login page or a proxy's message?)")
    return _small(data, url)


def _small(data: bytes, where: str) -> bytes:
    if len(data) > MAX_KEY:
        raise InputError(f"{where} is larger than {MAX_KEY} bytes", expected="a signing key", fix="look what it is")
    return data


def _not_fetched(url: str, why: str) -> GpunodeError:
    return GpunodeError(
        f"cannot fetch {url}: {why}",
        fix="look at the network and the proxy of this machine, or set sources.NAME.key to a local file",
    )
