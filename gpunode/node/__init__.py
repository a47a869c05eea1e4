"""What runs on a node: POSIX shell, sent as text by paramiko or by Ansible, or run locally."""

from importlib import resources

_BEHIND_COMMON = ("commit.sh", "packages.sh", "activate.sh", "smoke.sh")


def script(name: str) -> str:
    """The whole text of node script `name`, such as "probe.sh"; some stand behind what they share, common.sh."""
    parts = ("common.sh", name) if name in _BEHIND_COMMON else (name,)
    return "".join(resources.files(__name__).joinpath(part).read_text(encoding="utf-8") for part in parts)
