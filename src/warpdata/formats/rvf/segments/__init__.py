"""What segments hold: one codec per payload, and the layout of their records."""
