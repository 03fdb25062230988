"""Vector files that grow: what was appended to one is published as a part of it, beside what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.catalog.build.packing import PackedShard
from warpdata.catalog.publish.transfer import Upload, upload_file, upload_read
from warpdata.catalog.read.artifacts import Artifact
from warpdata.errors import ConflictError
from warpdata.formats.manifest.model import ArtifactPart, BlobRef
from warpdata.formats.manifest.vector_files import listed_files, vector_files
from warpdata.formats.rvf.verify import goes_on_from
from warpdata.stores.blobstore import DigestedFile, check_unchanged

_STEP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class GrownVectors:
    """An artifact of vector files with what was appended to them, and the bytes that are new."""

    part: ArtifactPart
    uploads: tuple[Upload, ...]


def grown_vectors(artifact: Artifact, shards: Sequence[PackedShard]) -> GrownVectors:
    """Files of an artifact as they are by now, and new ones; a file that lacks vectors it had is a ConflictError.

    Of a file that was only appended to, the end is sent; one that was written anew (an index, fewer bytes) whole.
    """
    held, uploads = artifact.part.shards, []
    files = {file: [held[at] for at in parts] for file, parts in vector_files(held).items()}
    for shard in shards:
        file = str(shard.name)
        check_unchanged(shard.path, shard.digest)
        known = files.get(file, [])
        with DigestedFile(shard.path, shard.digest) as reader:
            kept = _kept(reader, known)
            if kept < len(known):
                _check_goes_on(artifact, file, reader)
                kept = 0
            files[file], new = _cut(shard, reader, known[:kept])
        uploads += new
    return GrownVectors(replace(artifact.part, shards=listed_files(files)), tuple(uploads))


def _kept(reader: RangeReader, parts: Sequence[BlobRef]) -> int:
    """How many of the parts a file begins with."""
    start = 0
    for number, part in enumerate(parts):
        end = start + part.byte_size
        if end > reader.size or _sha256(reader, start, end) != part.hash:
            return number
        start = end
    return len(parts)


def _check_goes_on(artifact: Artifact, file: str, reader: RangeReader) -> None:
    if goes_on_from(reader, artifact.member_reader(file)):
        return
    fact = (
        f"{file!r} of artifact {artifact.name!r} is there already, and the new file lacks vectors that it has"
    )
    hint = (
        "Nothing was published. Add the vectors to the file of the newest version (`warp cat --artifact … --ref …`);"
        " to replace it, keep() the other parts and add this one."
    )
    raise ConflictError(fact, path=reader.name, hint=hint)


def _cut(
    shard: PackedShard, reader: RangeReader, parts: Sequence[BlobRef]
) -> tuple[list[BlobRef], list[Upload]]:
    """The parts of a file that begins with some of them, and what of it is new.

    A part at the end that is no larger than what comes behind it is sent anew with it, so there are always few.
    """
    kept, start = list(parts), sum(part.byte_size for part in parts)
    if start == reader.size:
        return kept, []
    while kept and kept[-1].byte_size <= reader.size - start:
        start -= kept.pop().byte_size
    if not kept:
        return [BlobRef(shard.digest.sha256, shard.digest.size)], [
            upload_file(shard.path, shard.digest, is_staged=False)
        ]
    end = BlobRef(_sha256(reader, start, reader.size), reader.size - start)
    return [*kept, end], [upload_read(_from(shard, start), reader.name, end)]


def _from(shard: PackedShard, offset: int) -> Callable[[int, int], memoryview]:
    def read(start: int, end: int) -> memoryview:
        with DigestedFile(shard.path, shard.digest) as reader:
            return reader.read(offset + start, offset + end)

    return read


def _sha256(reader: RangeReader, start: int, end: int) -> str:
    running = RunningSha256()
    for at in range(start, end, _STEP_BYTES):
        running.update(reader.read(at, min(at + _STEP_BYTES, end)))
    return running.hexdigest()
