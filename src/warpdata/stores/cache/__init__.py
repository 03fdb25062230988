"""The page cache on disk, blob readers that use it, and prefetching."""
