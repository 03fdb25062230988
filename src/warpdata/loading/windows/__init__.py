"""Samples for training: windows over episodes, their order, their batches and their state."""
