/** Every error of this package. `code` is stable and the same in Python, TypeScript and Go. */
export class WShardError extends Error {
  readonly code: string = "wshard";
  /** The block that is wrong, where it is one. */
  readonly block: string | undefined;
  readonly hint: string;

  constructor(fact: string, block?: string, hint = "") {
    super(block === undefined ? fact : `block '${block}': ${fact}`);
    this.name = "WShardError";
    this.block = block;
    this.hint = hint;
  }
}

/** The bytes are wrong: do not try again, restore the file from another copy. */
export class FormatError extends WShardError {
  override readonly code: string = "format";
}

export class BadMagicError extends FormatError {
  override readonly code = "bad_magic";
}

export class UnsupportedVersionError extends FormatError {
  override readonly code = "unsupported_version";
}

/** The file ends before its contents do. */
export class TruncatedError extends FormatError {
  override readonly code = "truncated";
}

/** A stored checksum does not match the bytes. */
export class ChecksumError extends FormatError {
  override readonly code = "checksum";
}

/** The structure of the file contradicts itself. */
export class CorruptLayoutError extends FormatError {
  override readonly code = "corrupt_layout";
}

/** A size in the file is beyond what the format allows. */
export class LimitExceededError extends FormatError {
  override readonly code = "limit_exceeded";
}

/** Nothing is stored under this name. */
export class NotFoundError extends WShardError {
  override readonly code = "not_found";
}

/** The file changed between two requests. */
export class ChangedError extends WShardError {
  override readonly code = "conflict";
}

/** The server did not give the bytes that were asked for. */
export class UnavailableError extends WShardError {
  override readonly code = "unavailable";
}

/** What was to be written would be refused by every reader, or come back as something else. */
export class SchemaMismatchError extends WShardError {
  override readonly code = "schema_mismatch";
}

/** Say that the structure of a file contradicts itself. */
export function corrupt(fact: string, block?: string, hint?: string): never {
  throw new CorruptLayoutError(fact, block, hint);
}

/** Run `work`; what it says is wrong is said about this block. */
export function about<T>(block: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (error instanceof FormatError && error.block === undefined) {
      throw new (error.constructor as typeof FormatError)(error.message, block, error.hint);
    }
    throw error;
  }
}
