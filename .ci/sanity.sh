#!/bin/sh
# ansible-test sanity on the collection as a user gets it: unpacked from the wheel.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m hatchling build -t wheel -d "$work" >/dev/null
python -m zipfile -e "$work"/*.whl "$work/site"
cd "$work/site/ansible_collections/gpunode/node"
# ansible-test finds a collection's files by git, or takes all of them.
ansible-test sanity --python "$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" --color no
