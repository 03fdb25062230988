/** Every number of the container and every name of the episode convention; SPEC.md of warpdata explains them. */
export const MAGIC = "SHRD";
export const VERSION = 2;
export const HEADER_BYTES = 64;
export const ENTRY_BYTES = 48;
export const ROLE_CHUNK_LIST = 4;
export const ROLE_EPISODE = 5;
export const HEADER_FLAGS = 0x00a2;
export const ALIGNMENT = 64;
export const ALIGNMENTS: readonly number[] = [0, 16, 32, 64];
export const MARK = "WDC1";
export const MARKED_HEADER_BYTES = 48;

export const FLAGS_RAW = 0x0000;
export const FLAGS_DEFAULT = 0x0001;
export const FLAGS_ZSTD = 0x0003;
export const FLAGS_LZ4 = 0x0005;
export const FLAGS_SEEKABLE = 0x000b;

export const CONTENT_RAW = 0;
export const CONTENT_JSON = 2;
export const CONTENT_TEXT = 5;
export const CONTENT_VIDEO = 8;

export const MAX_ENTRIES = 10_000_000;
export const MAX_STRING_TABLE_BYTES = 100_000_000;
export const MAX_NAME_BYTES = 4096;
export const MAX_BLOCK_BYTES = 64 * 2 ** 30;
/** A compressed block of more bytes than this may expand by at most this ratio. */
export const MAX_EXPANDED_BYTES = 2 ** 30;
export const MAX_LARGE_RATIO = 256;
export const PIECES_FROM_BYTES = 1 << 20;
export const PIECE_BYTES = 256 << 10;
export const FRAME_BYTES = 64 << 10;
export const MIN_COMPRESSED_BYTES = 64;

export const SKIPPABLE_MAGIC = 0x184d2a5e;
export const SEEK_TABLE_MAGIC = 0x8f92eab1;
export const MAX_FRAMES = 1 << 27;

export const META_WSHARD = "meta/wshard";
export const META_EPISODE = "meta/episode";
export const META_CHANNELS = "meta/channels";
export const META_MODELS = "meta/models";
export const META_CHUNK_LIST = "meta/manifest";
export const META_DIRECTORY = "meta/directory";
export const REWARD = "reward";
export const DONE = "done";
export const TRUNCATED = "truncated";
export const TICKS = "time/ticks";
export const TIMESTAMPS_NS = "time/timestamps_ns";
export const PIECES_PREFIX = "aux/crc32c/";
export const SEEK_PREFIX = "aux/seek/";
/** Whether a block only helps to read another. */
export const isAid = (name: string): boolean => name.startsWith(PIECES_PREFIX) || name.startsWith(SEEK_PREFIX);
export const ENDS_PREFIX = "aux/ends/";
/** Where rewards and flags are kept exactly if their own block, whose dtype is fixed, cannot hold them. */
export const EXACT: Readonly<Record<string, string>> = {
  reward: "aux/reward",
  done: "aux/done",
  truncated: "aux/truncated",
};
