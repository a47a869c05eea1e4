# shellcheck shell=sh
# The end of a run on this node: its lease is over (docs/fleet.md), and what became of it is in the journal, which tells a
# rollback that the run was not cut off.  Takes no lock, and changes nothing else.

need_root
lease_back
ended=$(word ended)
last=$(journal_lines | tail -n 1)
case $ended:$last in
  :* | *'"op":"uninstall"'* | *'"op":"rollback"'*) ;; # they are the end
  *"\"run\":\"$(word run)\""*) record "$(new_id "run-$$")" run "$ended" ;;
esac
finish unchanged "this run is over"
