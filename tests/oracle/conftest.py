"""Profiles of the oracles: `--hypothesis-profile=deep` runs many times as many cases, new ones each time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("deep")
