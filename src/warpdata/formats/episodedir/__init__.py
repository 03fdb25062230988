"""The episode directory: parquet signals, video with a frame index, static.json, meta.json, edits.jsonl."""
