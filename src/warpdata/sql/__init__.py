"""SQL over tables in memory or behind a reader: one shut engine, and what its text may say."""
