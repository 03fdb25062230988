"""Tar shards of raw files, and the member index that finds one of a million members in one read."""
