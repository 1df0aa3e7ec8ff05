"""Crashes, second openers, damaged and moved databases."""
