"""Fingerprints, compared with what gpg says of the same keys (tests/cases/keys)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.errors import InputError
from gpunode.core.openpgp import fingerprint, fingerprints

KEYS = Path(__file__).parents[1] / "cases" / "keys"
ONE, TWO = "D5A13BDF17B77D6BCF38F620BC28D7C0746B8292", "94D6D193C72E12C229A72A91CEC869AC9D96103F"
RSA = "E371E1E76043446DF7D5BF20E41E9B1FE88B9199"
V6 = "CB186C4F0609A697E4D52DFA6C722B0C1F1E27C18A56708F6525EC27BAD9ACC9"  # RFC 9580, A.3


@pytest.mark.parametrize(
    ("file", "found"),
    [("one.asc", (ONE,)), ("one.gpg", (ONE,)), ("rsa.asc", (RSA,)), ("two.asc", (ONE, TWO)), ("rfc9580-v6.asc", (V6,))],
)
def test_the_fingerprints_are_those_that_gpg_and_the_standard_give(file: str, found: tuple[str, ...]) -> None:
    assert fingerprints((KEYS / file).read_bytes()) == found


def test_text_around_the_armor_and_windows_line_ends_do_no_harm() -> None:
    text = b"Our key:\r\n\r\n" + (KEYS / "one.asc").read_bytes().replace(b"\n", b"\r\n") + b"\r\nbye\r\n"
    assert fingerprint(text) == ONE


def test_two_armored_blocks_in_one_file_are_both_found() -> None:
    text = (KEYS / "one.asc").read_bytes() + (KEYS / "rsa.asc").read_bytes()
    assert fingerprints(text) == (ONE, RSA)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"hello", "no armor, no packet"),
        (b"<!DOCTYPE html><html>", "it is an HTML page"),
        (b"\x99", "it is cut off"),
        (b"\x99\x01\x00\x04", "it is cut off"),
        (b"\xc6\x01\x03", "a key of version 3"),
        (b"\xcd\x01a", "it holds no public key"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n???\n-----END PGP PUBLIC KEY BLOCK-----\n", "its armor is damaged"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(InputError) as error:
        fingerprints(data)
    assert says in error.value.what


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: b"\xc6" + b))
def test_garbage_is_an_input_error_or_a_key_never_a_crash(data: bytes) -> None:
    try:
        found = fingerprints(data)
    except InputError:
        return
    assert all(len(f) in (40, 64) for f in found)


@given(st.integers(min_value=0, max_value=400))
def test_a_key_that_is_cut_off_gives_its_fingerprint_or_an_input_error(length: int) -> None:
    try:
        found = fingerprints((KEYS / "rsa.asc").read_bytes()[:length])
    except InputError:
        return
    assert found == (RSA,)
