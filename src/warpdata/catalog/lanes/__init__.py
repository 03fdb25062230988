"""Prediction lanes: signals that models predict for the episodes of a version."""
