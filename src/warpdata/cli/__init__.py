"""The command line: `warp`. Parses, calls a package, prints, and chooses the exit code."""
