"""Many episodes: lists, roots, facts, edits, statistics and work over them."""
