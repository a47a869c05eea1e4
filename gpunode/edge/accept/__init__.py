"""Acceptance: nodes are measured by the vendor's tools, in stages, and compared with each other."""
