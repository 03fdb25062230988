"""Ray Data: read published episodes and tables, change episodes, publish the result. Needs `warpdata[ray]`."""

from warpdata.ray.planning import open as open  # noqa: A004 - wd.ray.open, as wd.open
from warpdata.ray.planning import row as row
from warpdata.ray.verbs import map_episodes as map_episodes
from warpdata.ray.verbs import publish as publish
from warpdata.ray.verbs import read_episodes as read_episodes
from warpdata.ray.verbs import read_table as read_table

__all__ = ["map_episodes", "open", "publish", "read_episodes", "read_table", "row"]
