"""What all tests share: how long hypothesis may search, and lab nodes for the tests marked `lab`."""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
