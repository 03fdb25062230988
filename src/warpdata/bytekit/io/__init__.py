"""Files, byte ranges, commits and mappings."""
