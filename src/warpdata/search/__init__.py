"""Search: vectors by similarity, in one file beside the data."""
