"""The command line: `warp`. Parses, calls a room, prints, and chooses the exit code."""
