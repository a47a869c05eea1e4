"""Many hosts: detect, plan, provision, verify, undo, and the record of runs."""
