"""The bf16 directory: manifest.json and headerless files of bfloat16 rows. SPEC.md is the law."""
