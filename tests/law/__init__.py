"""Continuous views against the law: at any moment a view equals its plain query over all rows inserted since."""
