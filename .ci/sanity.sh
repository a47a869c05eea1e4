#!/bin/sh
# ansible-test sanity on the collection as a user gets it: unpacked from the wheel.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ansible-test gets pip from a host of its own; Python brings the same as ensurepip, so the answer is laid ready.
version=$(python - <<'PY'
import pathlib, re, ansible_test
root = pathlib.Path(ansible_test.__file__).parent
text = (root / "_internal/python_requirements.py").read_text() + (root / "_util/target/setup/requirements.py").read_text()
print(re.search(r"pip='([\d.]+)'", text)[1].replace(".", "_"))
PY
)
answer=$HOME/.ansible/test/cache/get_pip_$version.py
mkdir -p "${answer%/*}"
[ -e "$answer" ] || cat >"$answer" <<'PY'
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"])  # in a process of its own: it hides pip's settings
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *wanted]))
PY

python -m hatchling build -t wheel -d "$work" >/dev/null
python -m zipfile -e "$work"/*.whl "$work/site"
cd "$work/site/ansible_collections/gpunode/node"
# The collection is Apache-2.0; that its modules are to be GPL is a rule for those that ansible-core itself carries.
mkdir -p tests/sanity
release=$(python -c 'import ansible.release; print(*ansible.release.__version__.split(".")[:2], sep=".")')
printf '%s validate-modules:missing-gplv3-license\n' plugins/modules/*.py >"tests/sanity/ignore-$release.txt"
ansible-test sanity --python "$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" --color no "$@"
