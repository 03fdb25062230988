"""Pure order: which row comes when, as a function of (seed, epoch, shape). No I/O, no clock, no threads."""
