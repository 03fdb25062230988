"""The viewer: episodes in a browser, served from this machine."""
