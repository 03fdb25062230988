"""Where bytes live: one BlobStore protocol over memory, folders, HTTP, object stores, and a cache."""
