"""Corpora of activations from and to files of arrays: .npy, safetensors, folders of rows."""
