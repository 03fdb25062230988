"""A dataset version: its model, its canonical JSON, its hash, and the guide to its shards."""
