"""The viewer: episodes in a browser, served from this machine."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Viewer": "warpdata.viewer.server",
        "export_site": "warpdata.viewer.export",
        "view": "warpdata.viewer.server",
    },
)
