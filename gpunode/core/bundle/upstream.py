"""Where a bundle's packages come from: repositories, read from the files in which a distribution names them."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """One repository: of apt with its suite (`/` or `./`: flat) and components, or of rpm.

    `fingerprints` are those that may sign it, none: any key of `key`, which is a path, a URL, or armored text.
    """

    name: str = "distribution"  # of the bundle's repository that its packages come into: nvidia-cuda …
    url: str
    suite: str = "/"
    components: tuple[str, ...] = ()
    key: str = ""
    fingerprints: tuple[str, ...] = ()
    signs: str = "metadata"

    @property
    def flat(self) -> bool:
        return self.suite.endswith("/")

    @property
    def address(self) -> str:
        """What tells it from others."""
        return f"{self.url} {self.suite}"

    @property
    def release_folder(self) -> str:
        """Where its Release file lies, without a slash at the end."""
        base = self.url.rstrip("/")
        return f"{base}/{self.suite}".rstrip("/.") if self.flat else f"{base}/dists/{self.suite}"


def parse_sources(text: str, where: str, words: Mapping[str, str] = {}) -> tuple[Upstream, ...]:
    """A file of apt (deb822 or one line each), or of dnf and zypper (.repo).

    Disabled ones are left out.  `words` stand for $releasever and $basearch.  Raises InputError.
    """
    if re.search(r"^[ \t]*\[[^\]\n]+\][ \t\r]*$", text, re.M):
        found = tuple(_ini(text, where, words))
    elif re.search(r"^Types:", text, re.M | re.I):
        found = tuple(_deb822(text))
    else:
        found = tuple(_one_line(text))
    if not found:
        raise InputError(
            f"{where} names no repository",
            expected="a file of /etc/apt/sources.list.d, /etc/yum.repos.d or /etc/zypp/repos.d",
            fix="copy one from a machine of that distribution",
        )
    return found


def _deb822(text: str) -> Iterator[Upstream]:
    for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.M)):
        fields = {k.lower(): v for k, v in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", block, re.M)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").strip() == "no":
            continue
        for url in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Upstream(
                    url=url,
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    key=_key(fields.get("signed-by", "")),
                )


def _key(text: str) -> str:
    """A path, or a key's text, of which deb822 begins each line with a space and writes empty ones as a dot."""
    if "BEGIN PGP" not in text:
        return text.strip()
    return "\n".join("" if line.strip() == "." else line.strip() for line in text.splitlines())


def _one_line(text: str) -> Iterator[Upstream]:
    for m in re.finditer(
        r"^[ \t]*deb[ \t]+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<url>\S+)\s+(?P<suite>\S+)(?P<rest>[^#\n]*)", text, re.M
    ):
        signed = re.search(r"signed-by=(\S+)", m["options"] or "")
        yield Upstream(
            url=m["url"],
            suite=m["suite"],
            components=tuple(m["rest"].split()),
            key=signed[1] if signed else "",
        )


def _ini(text: str, where: str, words: Mapping[str, str]) -> Iterator[Upstream]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InputError(f"{where}: {error}", expected="a .repo file", fix="look at the file") from error
    for name in parser.sections():
        row = parser[name]
        if row.get("enabled", "1").strip() in ("0", "false", "no"):
            continue
        url = row.get("baseurl", "").split()
        if not url:
            raise InputError(
                f"{where}: [{name}] has no baseurl",
                expected="baseurl: a bundle is made from one server, not from a list of mirrors",
                fix="put a mirror's address there in place of mirrorlist or metalink",
            )
        address = url[0]
        for word, value in words.items():
            address = address.replace(f"${word}", value).replace(f"${{{word}}}", value)
        metadata = row.get("repo_gpgcheck", "0").strip() in ("1", "true", "yes")
        keys = row.get("gpgkey", "").split()
        yield Upstream(
            url=address,
            key=keys[0].removeprefix("file://") if keys else "",
            signs="metadata" if metadata else "packages",
        )


def parse_archives(table: Mapping[str, object], target: str, arch: str) -> tuple[Upstream, ...]:
    """The rows of a distribution's key on that architecture, () where none is known."""
    rows = table["archives"]
    assert isinstance(rows, list)
    return tuple(
        Upstream(
            url=row["url"],
            suite=suite,
            components=tuple(row["components"]),
            key=row["key"],
            fingerprints=tuple(row["fingerprints"]),
        )
        for row in rows
        if target in row["distros"] and arch in row["archs"]
        for suite in row["suites"]
    )
