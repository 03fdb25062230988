"""Exit codes of `warp`, the same for every command."""

OK = 0
ERROR = 1
USAGE = 2
DAMAGED = 3
"""The command finished, but data was lost or is damaged."""
STOPPED = 130
"""The user pressed Ctrl-C."""
