"""One module per command: `HELP`, `add_arguments(parser)` and `run(args, console)`."""
