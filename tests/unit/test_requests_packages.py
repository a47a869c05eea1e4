"""The request of packages.sh as a pure function."""

import pytest

from gpunode.core.errors import InputError
from gpunode.core.items.package import locked_by, nothing_to_do, packages_request

WHOLE = {
    "install": [
        {"name": "nvidia-open", "version": "580.178.04-1", "hold": True},
        {"name": "g++", "version": ""},
        "make",
    ],
    "remove": ["nvidia-docker2"],
    "refresh": ["/etc/apt/sources.list.d/nvidia-cuda.sources"],
    "proxy": "http://me:pw@proxy:3128",
}


def test_every_key_becomes_one_file_of_lines() -> None:
    assert packages_request(WHOLE, wait=20) == {
        "install": b"nvidia-open 580.178.04-1 hold\ng++ - -\nmake - -\n",
        "remove": b"nvidia-docker2\n",
        "refresh": b"/etc/apt/sources.list.d/nvidia-cuda.sources\n",
        "proxy": b"http://me:pw@proxy:3128\n",
        "wait": b"20\n",
    }


def test_what_taking_packages_back_needs_is_a_file_each() -> None:
    value = {"unhold": ["a"], "purge": ["a", "b"], "automatic": ["c"], "keys": ["gpg-pubkey-1-2"], "streams": ["m:-"]}
    assert packages_request(value, wait=20) == {
        "unhold": b"a\n",
        "purge": b"a\nb\n",
        "automatic": b"c\n",
        "keys": b"gpg-pubkey-1-2\n",
        "streams": b"m -\n",
        "wait": b"20\n",
    }


def test_check_mode_is_a_file_of_its_own() -> None:
    assert packages_request({"remove": ["a"]}, check=True)["check"] == b"1\n"


def test_a_value_without_packages_needs_no_round_trip() -> None:
    assert nothing_to_do({}) and nothing_to_do({"refresh": ["/a"], "proxy": "http://p"})
    assert not nothing_to_do({"remove": ["a"]})


@pytest.mark.parametrize("value", [{"instal": [{"name": "a"}]}, {"removed": ["a"]}, {"install": "abc"}])
def test_a_mistake_is_no_value_without_packages(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        nothing_to_do(value)


@pytest.mark.parametrize(
    "value",
    [
        {"install": ["-o=Dir=/"]},
        {"install": ["a b"]},
        {"install": ["a\nb"]},
        {"install": [{"name": "a", "version": "1;reboot"}]},
        {"install": [{"version": "1"}]},
        {"remove": ["$(reboot)"]},
        {"refresh": ["relative.sources"]},
        {"proxy": 'http://p"; Dir "/'},
        {"instal": ["a"]},
        {"keys": ["-e all"]},
    ],
)
def test_words_that_a_shell_or_apt_could_misread_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(InputError):
        packages_request(value)


def test_who_holds_the_lock_is_read_from_its_line() -> None:
    assert locked_by("log\ngpunode\tlocked\tapt (PID 7) holds /x\ngpunode\tstatus\tfailed\n") == "apt (PID 7) holds /x"
    assert locked_by("gpunode\tstatus\tchanged\n") == ""
