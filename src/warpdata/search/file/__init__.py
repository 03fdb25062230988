"""Vector files: content, changes and rewrites of a store."""
