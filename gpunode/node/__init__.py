"""What runs on a node: POSIX shell, sent as text by paramiko or by Ansible, or run locally."""

from base64 import b64encode
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile

from gpunode.core.engines import shell_variables

_MANAGERS = ("apt.sh", "dnf.sh", "zypper.sh", "pacman.sh", "undo_packages.sh")
_FILES = ("common.sh", "lock.sh", "file.sh", "transaction.sh")
_BEFORE = {
    "commit.sh": (*_FILES, "pause.sh", "devices.sh", "reload.sh", "service.sh", "await.sh"),
    "packages.sh": (
        "common.sh",
        "lock.sh",
        "devices.sh",
        "reload.sh",
        "dkms_state.sh",
        "dkms.sh",
        "side_effects.sh",
        "package_marks.sh",
        "changes.sh",
        "dry_run.sh",
        *_MANAGERS,
    ),
    "runfile.sh": ("common.sh", "lock.sh", "pause.sh", "dkms_state.sh", "dkms.sh"),
    "read_journal.sh": ("common.sh", "driver_state.sh", "arguments.sh", "mig_state.sh", "imports.sh", *_MANAGERS),
    "restore.sh": ("common.sh", "lock.sh", "devices.sh", "reload.sh", "arguments.sh"),
    "activate.sh": ("common.sh", "lock.sh", "pause.sh", "driver_state.sh", "devices.sh", "reload.sh", "arguments.sh"),
    "probe.sh": (
        *("devices.sh", "arguments.sh", "dkms_state.sh", "probe_words.sh", "probe_machine.sh", "probe_links.sh"),
        *("probe_engines.sh", "imports.sh", "probe_files.sh"),
    ),
    "logs.sh": ("devices.sh", "probe_words.sh"),
    "smoke.sh": ("common.sh", "lock.sh"),
    "cdi.sh": (*_FILES, "own_units.sh"),
    "mig.sh": (*_FILES, "pause.sh", "own_units.sh", "pods.sh", "mig_state.sh"),
    "mps.sh": (*_FILES, "own_units.sh", "mig_state.sh"),
    "firstboot.sh": ("common.sh",),
    "follow.sh": ("common.sh",),
    "release.sh": ("common.sh", "lock.sh"),
    "accept.sh": ("common.sh", "lock.sh", "pods.sh"),
}


def script(name: str) -> str:
    """The whole text of node script `name`, such as "probe.sh": what it uses of the tables, parts, itself."""
    names = ("base.sh", *_BEFORE.get(name, ()), name)
    text = "".join(part(n).read_text(encoding="utf-8") for n in names)
    lines = text.splitlines(keepends=True)
    head = "".join(takewhile(lambda line: line.startswith("#"), lines))  # shellcheck's directives count at the top
    variables = shell_variables() | (_questions() if "$SMI_" in text else {})
    if "$CUDA_PROGRAM" in text:
        variables["CUDA_PROGRAM"] = b64encode(part("cuda.py").read_bytes()).decode()
    rows = "".join(f"{key}='{value}'\n" for key, value in variables.items() if f"${key}" in text)
    return head + rows + text[len(head) :]


def _questions() -> dict[str, str]:
    from gpunode.core.knowledge.questions import question_variables
    from gpunode.edge.load import load_questions

    return question_variables(load_questions())


def part(name: str) -> Traversable:
    """The file of that name, in whichever folder it is; names are unique."""
    [path] = [p for f in resources.files(__name__).iterdir() if f.is_dir() and (p := f / name).is_file()]
    return path
