"""SQL over tables in memory or behind a reader: one sandboxed engine, and checks of its text."""
