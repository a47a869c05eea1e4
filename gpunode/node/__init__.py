"""What runs on a node: POSIX shell, sent as text by paramiko or by Ansible, or run locally."""

from importlib import resources

_MANAGERS = ("apt.sh", "dnf.sh", "zypper.sh", "pacman.sh", "undo_packages.sh")
_BEFORE = {
    "commit.sh": ("common.sh", "devices.sh", "reload.sh", "file.sh", "service.sh", "await.sh"),
    "packages.sh": (
        "common.sh",
        "devices.sh",
        "reload.sh",
        "dkms.sh",
        "beside.sh",
        "marks.sh",
        "changes.sh",
        "foretell.sh",
        *_MANAGERS,
    ),
    "runfile.sh": ("common.sh", "dkms.sh"),
    "recall.sh": ("common.sh", "loaded.sh", *_MANAGERS),
    "putback.sh": ("common.sh", "devices.sh", "reload.sh"),
    "activate.sh": ("common.sh", "loaded.sh", "devices.sh", "reload.sh"),
    "probe.sh": ("devices.sh", "probe_words.sh", "probe_machine.sh", "probe_engines.sh", "probe_files.sh"),
    "smoke.sh": ("common.sh",),
    "cdi.sh": ("common.sh", "place.sh"),
    "mig.sh": ("common.sh", "place.sh"),
    "mps.sh": ("common.sh", "place.sh"),
    "firstboot.sh": ("common.sh",),
}


def script(name: str) -> str:
    """The whole text of node script `name`, such as "probe.sh"; most stand behind parts that they share."""
    parts = (*_BEFORE.get(name, ()), name)
    return "".join(resources.files(__name__).joinpath(part).read_text(encoding="utf-8") for part in parts)
