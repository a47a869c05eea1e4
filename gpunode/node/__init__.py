"""What runs on a node: POSIX shell, sent as text by paramiko or by Ansible, or run locally."""

from importlib import resources


def script(name: str) -> str:
    """The text of node script `name`, such as "probe.sh"."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
