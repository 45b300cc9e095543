"""Distributions and windows: how partial results become the figures of a table."""
