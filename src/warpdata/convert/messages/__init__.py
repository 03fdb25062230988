"""Recordings of messages as episodes, and back: topics, decoders of their types, signals of their fields."""
