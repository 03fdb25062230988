"""Episode shards: the SHRD container, its blocks, and what the blocks of an episode mean."""

from warpdata.formats.wshard.reader import ShardReader as ShardReader
from warpdata.formats.wshard.writer import ShardWriter as ShardWriter
