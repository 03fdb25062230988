"""Row state: a log of per-row solver state and the checkpoint that commits it. SPEC.md is the law."""
