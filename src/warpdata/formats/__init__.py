"""One package per file format. A format knows bytes and their meaning, never a URL and never another format."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    ("bf16dir", "episodedir", "gamsae", "journal", "manifest", "rowstate", "rvf", "tarshard", "wshard"),
)
