"""Publishing: blobs, manifests, pointers, signatures, and the lists of versions and datasets."""
