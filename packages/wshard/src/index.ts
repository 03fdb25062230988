export type { ChunkEntry, ChunkList, ChunkListData } from "./chunks.js";
export { DTYPES, type DType, type TypedArray, toFloat32, typedArray } from "./dtype.js";
export { Channel, Episode, type EpisodeOptions, episodeOf } from "./episode.js";
export {
  BadMagicError,
  ChangedError,
  ChecksumError,
  CorruptLayoutError,
  FormatError,
  LimitExceededError,
  NotFoundError,
  SchemaMismatchError,
  TruncatedError,
  UnavailableError,
  UnsupportedVersionError,
  WShardError,
} from "./errors.js";
export { openEpisode } from "./joined.js";
export type { Json, JsonObject } from "./json.js";
export type { Recording, Signal } from "./packed.js";
export type { RowSource } from "./rows.js";
export type { ChunkPosition, Lane, Part, Role, Timebase } from "./schema.js";
export { type OpenOptions, Shard } from "./shard.js";
export { fromBlob, fromBytes, fromUrl, type Source, type UrlOptions } from "./source.js";
export type { Block } from "./table.js";
