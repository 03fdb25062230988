"""Activation corpora: harvest rows, read them in a fixed order, shuffle them in a reproducible one."""
