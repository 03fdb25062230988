"""One package per file format. A format knows bytes and their meaning, never a URL and never another format."""
