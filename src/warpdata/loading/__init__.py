"""From published tables to training steps: who reads which rows, in which order, and where to go on."""
