"""Recorded messages as episodes, whatever they were recorded with: topics, their types, and what a field becomes."""
