"""Episodes written in a form: a directory, one shard, chunks, tensors."""
