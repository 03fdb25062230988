"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""
