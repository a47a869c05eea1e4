"""What a release consists of.  `make release` runs all of it into dist/.

release.py version [NEW]   the version, or write a new one into the files that carry it
release.py build DIR       wheel, sdist and the collection's tarball: no network, same sources → same bytes
release.py pyz DIR      gpunode.pyz, with what the wheel needs for four Pythons and two machines (asks PyPI)
release.py galaxy DIR      whether Galaxy takes the collection: its importer ends without an error or a warning
release.py bill DIR        of what the wheel brings into a fresh environment: bill of materials, licences, audit
release.py audit DIR       the audit alone: which holes are known; says so where nobody can be asked
release.py sums DIR        SHA256SUMS over all that lies there
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".ci/pyz"))
import pack  # noqa: E402

PYZ = "gpunode.pyz"
COLLECTION = "ansible_collections/gpunode/node"
VERSIONS = {  # file → what stands before the version in it; pyproject.toml reads the first
    "gpunode/__init__.py": '__version__ = "',
    f"gpunode/collection/{COLLECTION}/galaxy.yml": "version: ",
    f"gpunode/collection/{COLLECTION}/plugins/plugin_utils/node.py": 'VERSION = "',
    f"gpunode/collection/{COLLECTION}/requirements.txt": "gpunode==",
}
# What may be used from Apache-2.0; that paramiko (LGPL) and ansible-core (GPL) may is said in docs/releasing.md.
LICENCES = "Apache;BSD;MIT;ISC;PSF;Python Software Foundation;MPL;Mozilla;GPL;GNU"


def main(command: str, argument: str = "") -> None:
    if command == "version":
        set_version(ROOT, argument) if argument else print(version(ROOT))
        return
    target = Path(argument or "dist").resolve()
    target.mkdir(parents=True, exist_ok=True)
    {"build": build, "pyz": pyz, "galaxy": galaxy, "bill": bill, "audit": audit, "sums": sums}[command](target)


# ---------------------------------------------------------------- the version


def version(root: Path) -> str:
    found = {name: _versions(root / name, before)[1] for name, before in VERSIONS.items()}
    if len(set(found.values())) > 1:
        sys.exit(f"the versions differ: {found}; write one into all by: release.py version NEW")
    return found["gpunode/__init__.py"]


def set_version(root: Path, new: str) -> None:
    if not re.fullmatch(r"\d+\.\d+\.\d+", new):
        sys.exit(f"{new!r} is no version; expected one like 1.2.3")
    for name, before in VERSIONS.items():
        head, _, tail = _versions(root / name, before)
        (root / name).write_text(head + new + tail, encoding="utf-8")


def _versions(path: Path, before: str) -> tuple[str, str, str]:
    text = path.read_text(encoding="utf-8")
    match = re.search(rf'^{re.escape(before)}([^"\n]+)', text, re.M)
    if not match:
        sys.exit(f"{path}: no line with {before}")
    return text[: match.start(1)], match[1], text[match.end(1) :]


# ---------------------------------------------------------------- wheel, sdist, collection


def build(target: Path) -> None:
    version(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        source = _committed(Path(folder, "source"))
        run(sys.executable, "-m", "hatchling", "build", "-d", target, cwd=source, SOURCE_DATE_EPOCH=str(_epoch()))
        zipfile.ZipFile(_wheel(target)).extractall(Path(folder, "wheel"))  # noqa: S202 (made by us, just now)
        built = run("ansible-galaxy", "collection", "build", "--output-path", folder, Path(folder, "wheel", COLLECTION))
        tarball = Path(built.split()[-1])
        (target / tarball.name).write_bytes(same_bytes(tarball.read_bytes(), _epoch()))
    print(*sorted(path.name for path in target.iterdir()), sep="\n")


def pyz(target: Path) -> None:
    """The same packages give the same bytes; which those are depends on the day, as with the bill of materials."""
    with tempfile.TemporaryDirectory() as folder:
        sites = pack.filled(_wheel(target), Path(folder))
        pack.pack(sites, target / PYZ, _epoch())
    print(f"{PYZ}: {(target / PYZ).stat().st_size >> 20} MiB for {', '.join(sites)}")


def galaxy(target: Path) -> None:
    tarball = target / f"gpunode-node-{version(ROOT)}.tar.gz"
    command = (sys.executable, "-m", "galaxy_importer.main", tarball)
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    printed = (done.stdout + done.stderr).splitlines()
    (target / "importer_result.json").unlink(missing_ok=True)
    wrong = printed if done.returncode else [line for line in printed if "ERROR" in line or "WARNING" in line]
    if wrong:
        sys.exit("\n".join(["Galaxy's importer does not take the collection:", *wrong]))
    print(printed[-1])


def same_bytes(tarball: bytes, epoch: int) -> bytes:
    """A collection as ansible-galaxy builds it → the same with its files in order and no times of this hour."""
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        members = {m.name: (m, archive.extractfile(m)) for m in archive.getmembers()}
        content = {name: stream.read() if stream else b"" for name, (_, stream) in members.items()}
    files = json.loads(content["FILES.json"])
    files["files"].sort(key=lambda file: file["name"])
    content["FILES.json"] = json.dumps(files, indent=1).encode()
    manifest = json.loads(content["MANIFEST.json"])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(content["FILES.json"]).hexdigest()
    content["MANIFEST.json"] = json.dumps(manifest, indent=1).encode()
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name in sorted(members):
            was, member = members[name][0], tarfile.TarInfo(name)
            member.type, member.mtime, member.size = was.type, epoch, len(content[name])
            member.mode = 0o755 if was.isdir() or was.mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(content[name]))
    return packed.getvalue()


def _wheel(target: Path) -> Path:
    return target / f"gpunode-{version(ROOT)}-py3-none-any.whl"


def _committed(target: Path) -> Path:
    """A copy of the last commit, so that nothing gets in that lies about here; without git (an sdist), this folder."""
    if not (ROOT / ".git").exists():
        return ROOT
    changed = run("git", "status", "--porcelain", cwd=ROOT)
    if changed:
        print(f"not in the release, since not committed:\n{changed}", file=sys.stderr)
    target.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        files.extractall(target)  # noqa: S202 (by that filter)
    return target


def _epoch() -> int:
    """SOURCE_DATE_EPOCH, else when the last commit was made, else (an sdist) the time that hatchling takes."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(run("git", "log", "-1", "--format=%ct", cwd=ROOT)) if (ROOT / ".git").exists() else 1580601600


# ---------------------------------------------------------------- what the wheel brings with it


def bill(target: Path) -> None:
    bom = target / f"gpunode-{version(ROOT)}.cdx.json"
    with _installed(target) as python:
        run("cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "application",
            "--output-reproducible", "--output-format", "JSON", "--output-file", bom, python)  # fmt: skip
        run("pip-licenses", "--python", python, "--partial-match", "--allow-only", LICENCES, "--order", "name",
            "--with-urls", "--format", "markdown", "--output-file", target / "licences.md")  # fmt: skip
        components = json.loads(bom.read_text())["components"]
        print(f"{bom.name}: {len(components)} components; licences.md")
        unlisted = {name for found in _packed(target) for name in found} - {pack.plain(c["name"]) for c in components}
        if unlisted - {"gpunode"}:
            sys.exit(f"{PYZ} has what the bill has not: {', '.join(sorted(unlisted))}")
        _audit(python, target / "audit.json")


def audit(target: Path) -> None:
    with _installed(target) as python:
        _audit(python, target / "audit.json")


def _packed(target: Path) -> list[dict[str, str]]:
    """The packages of gpunode.pyz with their versions, for each Python that has others; none where there is no file."""
    if not (target / PYZ).is_file():
        return []
    with zipfile.ZipFile(target / PYZ) as packed:
        found = json.loads(packed.read("packages.json")).values()
    return [dict(pairs) for pairs in sorted({tuple(one.items()) for one in found})]


def _audit(python: Path, found: Path) -> None:
    """Ends with 1 when a hole is known; when nobody can be asked, says so and leaves no file."""
    found.unlink(missing_ok=True)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    audited = {}
    with tempfile.TemporaryDirectory() as folder:
        asked: list[list[str | Path]] = [["--path", site]]
        for n, versions in enumerate(_packed(found.parent)):
            pins = Path(folder, f"{n}.txt")
            pins.write_text("".join(f"{p}=={v}\n" for p, v in versions.items() if p != "gpunode"), encoding="utf-8")
            asked.append(["--no-deps", "--disable-pip", "--requirement", pins])
        for words in asked:
            command = ["pip-audit", *words, "--progress-spinner", "off", "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            try:
                audited |= {(one["name"], one.get("version")): one for one in json.loads(done.stdout)["dependencies"]}
            except (ValueError, KeyError):
                reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
                print(f"NOT AUDITED, pip-audit could not ask: {reason[:300]}", file=sys.stderr)
                return
    packages = list(audited.values())
    found.write_text(json.dumps({"dependencies": packages}, indent=1) + "\n", encoding="utf-8")
    holes = [f"{p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", ())]
    print(f"{len(packages)} packages audited, {len(holes)} known holes", *holes, sep="\n")
    if holes:
        sys.exit(1)


@contextlib.contextmanager
def _installed(target: Path) -> Iterator[Path]:
    """The Python of a fresh environment with the wheel and what it needs, and nothing else."""
    wheel = _wheel(target)
    if not wheel.is_file():
        sys.exit(f"no {wheel}: release.py build {target}")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin/python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
        yield python


def sums(target: Path) -> None:
    files = sorted(path for path in target.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Standard output; where the command fails, what it said, and the end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    clean |= {"LC_ALL": "C.UTF-8"} | env
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:3]))} …: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:3]) if len(sys.argv) > 1 else sys.exit(__doc__)
