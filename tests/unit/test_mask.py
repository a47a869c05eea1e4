"""Secrets do not survive masking, and what is no secret does."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.core.diff import unified
from gpunode.core.mask import HIDDEN, mask

SECRET = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=40)
KEY = st.sampled_from(
    "auth password passwd token identitytoken identity_token registry_token secret client_secret api_key api-key "
    "access_key private_key secret_key credentials ansible_password ansible_become_pass PASSWORD DB_PASSWORD "
    "HTTP_AUTH_TOKEN passphrase clientSecret accessToken apiToken dockerAuth userPassword".split()
)
FORMS = (
    "{key} = {secret}\n",
    '{key} = "{secret}" # comment\n',
    "{key} = '{secret}'\n",
    '{key} = """\n{secret}\n"""\n',
    "{key}: {secret}\n",
    "{key}:   'a {secret}'\n",
    "  - {key}: {secret}\n",
    "{key}: |\n  x\n  {secret}\nnext: 1\n",
    "{key}: >-\n\n    {secret}\n",
    "{key}:\n- a\n- {secret}\n",
    "{key}:\n  sub: {secret}\n",
    '{{"{key}": "{secret}", "x": 1}}',
    '{{"{key}":\n  "{secret}"}}',
    '{{"{key}": ["a", "{secret}"]}}',
    '{{"{key}": {{"a": {{"b": "}}"}}, "c": "{secret}"}}, "x": 1}}',
    '{key} = [ "a", # ]\n  "{secret}" ]\n',
    "export {key}={secret}\n",
    "command --{key} {secret} --other\n",
    "command --{key}={secret}\n",
    '+  {key} = "x\\"{secret}"\n',
    "-{key}={secret}\n",
    "{key}:{secret}",
)


@given(KEY, SECRET, st.sampled_from(FORMS), st.text(max_size=20), st.text(max_size=20))
def test_no_secret_survives(key: str, secret: str, form: str, before: str, after: str) -> None:
    assume(secret not in before + after)
    text = before + "\n" + form.format(key=key, secret=secret) + after
    assert secret not in mask(text)


@given(SECRET)
def test_secrets_without_a_key_are_known_by_their_shape(secret: str) -> None:
    for text in (
        f"https://user:{secret}@host/path",
        f"http://{secret}@host",
        f"Authorization: Bearer {secret}",
        f"curl -H 'x: Basic {secret}'",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{secret}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{secret}",
    ):
        assert secret not in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/certs.d"\n',
        "Signed-By: /usr/share/keyrings/nvidia.asc\n",
        "gpgkey=https://developer.download.nvidia.com/compute/cuda/repos/D42D0685.pub\n",
        '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
        "author: somebody\nsecretName: x\n",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n-----END PGP PUBLIC KEY BLOCK-----\n",
        "https://host/path?x=1\n",
        'password = ""\n',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


@given(st.text())
def test_masking_twice_equals_masking_once(text: str) -> None:
    assert mask(mask(text)) == mask(text)


def test_a_diff_hides_secrets_in_context_and_changes() -> None:
    before = b'password = "hunter2"\na = 1\n'
    after = b'password = "hunter2"\na = 2\ntoken = "abc"\n'
    assert unified(before, after, "/etc/x") == (
        f'--- /etc/x\n+++ /etc/x\n@@ -1,2 +1,3 @@\n password = "{HIDDEN}"\n-a = 1\n+a = 2\n+token = "{HIDDEN}"\n'
    )


def test_a_new_and_a_removed_file_are_told_apart() -> None:
    assert unified(None, b"a\n", "/etc/x").startswith("--- /dev/null\n+++ /etc/x\n")
    assert unified(b"a\n", None, "/etc/x").startswith("--- /etc/x\n+++ /dev/null\n")
    assert unified(b"a\n", b"a\n", "/etc/x") == ""
    assert "only secrets" in unified(b"token=a\n", b"token=b\n", "/etc/x")
