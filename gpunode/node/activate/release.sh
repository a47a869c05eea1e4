# shellcheck shell=sh
# The end of a run on this node: its lease is over (docs/fleet.md).  Takes no lock, and changes nothing else.

need_root
lease_back
finish unchanged "this run is over"
