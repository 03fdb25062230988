"""Batches of published tables, in row order or shuffled."""
