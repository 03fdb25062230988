"""Foreign formats in and out: one format per file."""
