"""GAMSAE01: one shard of fixed-width activation rows. SPEC.md is the law."""
