"""Queries: exact search, graphs, partitions, conditions."""
