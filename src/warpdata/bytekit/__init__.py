"""The byte toolbox: checksums, codecs, dtypes, ranges and commits. It knows bytes, and no format."""
