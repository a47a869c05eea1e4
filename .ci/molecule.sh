#!/bin/sh
# molecule.sh SCENARIO: one Molecule scenario from nothing to destroyed, on nodes of the lab's images.
set -eu
exec python molecule/run.py "$1" test
