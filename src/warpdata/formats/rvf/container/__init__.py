"""The container: segments, manifests, signatures, snapshots."""
