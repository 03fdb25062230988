package wshard

import (
	"bytes"
	"encoding/binary"
	"sort"
	"strings"
	"unicode/utf8"
)

const salvageHint = "Run `warp salvage` if a streaming recorder wrote it; otherwise restore it from another copy."

// Block is where one named block lies and how it is stored.
type Block struct {
	Name        string
	Codec       string
	IsSeekable  bool
	DataOffset  int64
	DiskSize    int64
	RawSize     int64
	CRC32C      uint32
	ContentType uint16
}

type header struct {
	role, defaultCodec      uint8
	namesOffset, dataOffset int64
}

var little = binary.LittleEndian

func unpackHeader(start []byte, size int64) (header, error) {
	short := fail(Truncated, "", "a file of %d bytes is too short for a shard", size)
	found := string(start[:min(4, len(start))])
	if found != magic {
		if strings.HasPrefix(magic, found) {
			return header{}, short
		}
		return header{}, fail(BadMagic, "", "not a shard: the file does not begin with SHRD")
	}
	if len(start) < headerBytes {
		return header{}, short
	}
	if start[4] != version {
		return header{}, fail(UnsupportedVersion, "", "shard version %d is not known", start[4])
	}
	if each := little.Uint16(start[10:]); each != entryBytes {
		return header{}, corrupt("", "table entries of %d bytes, not 48", each)
	}
	count := little.Uint32(start[12:])
	if count > maxEntries {
		return header{}, fail(LimitExceeded, "", "%d blocks, at most 10,000,000 are allowed", count)
	}
	if !alignments[start[8]] {
		return header{}, corrupt("", "alignment %d is none of 0, 16, 32, 64", start[8])
	}
	names, data, total := little.Uint64(start[16:]), little.Uint64(start[24:]), little.Uint64(start[40:])
	if names != headerBytes+entryBytes*uint64(count) {
		return header{}, &Error{CorruptLayout, "the names do not follow the block table", "", salvageHint}
	}
	if data < names {
		return header{}, corrupt("", "the data begins before the names")
	}
	if data-names > maxStringTableBytes {
		return header{}, fail(LimitExceeded, "", "%d bytes of names, at most 100 MB are allowed", data-names)
	}
	if total != uint64(size) {
		code := CorruptLayout
		if uint64(size) < total {
			code = Truncated
		}
		return header{}, fail(code, "", "the file has %d bytes, its header says %d", size, total)
	}
	if data > uint64(size) {
		return header{}, fail(Truncated, "", "the file ends inside its block table")
	}
	return header{start[5], start[9], int64(names), int64(data)}, nil
}

// parseTable gives the blocks of a shard out of its first dataOffset bytes, in their order.
func parseTable(h header, head []byte, size int64) ([]*Block, bool, error) {
	isChecksummed, err := checkMark(head[:h.dataOffset])
	if err != nil {
		return nil, false, err
	}
	names := head[h.namesOffset:h.dataOffset]
	var blocks []*Block
	seen := map[string]bool{}
	for at := int64(headerBytes); at < h.namesOffset; at += entryBytes {
		block, err := unpackEntry(head[at:at+entryBytes], names, h.defaultCodec, isChecksummed)
		if err != nil {
			return nil, false, err
		}
		if seen[block.Name] {
			return nil, false, corrupt(block.Name, "two blocks have this name")
		}
		seen[block.Name] = true
		blocks = append(blocks, block)
	}
	return blocks, isChecksummed, checkRanges(blocks, h.dataOffset, size)
}

func tableCRC32C(head []byte) uint32 {
	return crc32c(head[headerBytes:], crc32c(head[:markedHeaderBytes], 0))
}

// checkMark checks the table checksum; a file without one has zeros there, anything else is damage.
func checkMark(head []byte) (bool, error) {
	if !bytes.Equal(head[56:64], make([]byte, 8)) {
		return false, corrupt("", "reserved header bytes are not zero")
	}
	stored := little.Uint32(head[52:])
	if little.Uint32(head[48:]) == 0 && stored == 0 {
		return false, nil
	}
	if string(head[48:52]) != mark {
		return false, corrupt("", "the mark of the table checksum is damaged")
	}
	if tableCRC32C(head) != stored {
		return false, fail(Checksum, "", "header, block table or names were changed")
	}
	return true, nil
}

func unpackEntry(entry, names []byte, byDefault uint8, isTrusted bool) (*Block, error) {
	at, size := int64(little.Uint32(entry[8:])), int64(little.Uint16(entry[12:]))
	if at+size > int64(len(names)) {
		return nil, corrupt("", "the name of a block lies outside the table of names")
	}
	raw := names[at : at+size]
	name, err := checkedName(raw)
	if err != nil {
		return nil, err
	}
	if hash := little.Uint64(entry); !isTrusted && hash != xxh64(raw) && hash != fnv1a64(raw) {
		return nil, corrupt(name, "the hash of the name is wrong")
	}
	offset, disk, rawSize := little.Uint64(entry[16:]), little.Uint64(entry[24:]), little.Uint64(entry[32:])
	if most := max(disk, rawSize); most > maxBlockBytes {
		return nil, fail(LimitExceeded, name, "%d bytes are too many", most)
	}
	flags := little.Uint16(entry[14:])
	codec, err := codecOf(flags, byDefault, disk == rawSize, name)
	if err != nil {
		return nil, err
	}
	if codec == "none" && disk != rawSize {
		return nil, corrupt(name, "stored raw, but its two sizes differ")
	}
	if offset > 1<<62 {
		offset = 1 << 62 // beyond every file; the ranges say so
	}
	return &Block{name, codec, flags == flagsSeekable, int64(offset), int64(disk), int64(rawSize),
		little.Uint32(entry[40:]), little.Uint16(entry[44:])}, nil
}

func codecOf(flags uint16, byDefault uint8, isSameSize bool, name string) (string, error) {
	switch flags {
	case flagsRaw:
		return "none", nil
	case flagsZstd, flagsSeekable:
		return "zstd", nil
	case flagsLz4:
		return "lz4", nil
	case flagsDefault: // two existing writers set only this bit, even where the block is raw
		if isSameSize || byDefault == 0 || byDefault > 2 {
			return "none", nil
		}
		return [3]string{"none", "zstd", "lz4"}[byDefault], nil
	}
	return "", corrupt(name, "unknown storage flags 0x%04x", flags)
}

func checkedName(raw []byte) (string, error) {
	if len(raw) > maxNameBytes || len(raw) == 0 {
		return "", fail(LimitExceeded, "", "a block name of %d bytes", len(raw))
	}
	if !utf8.Valid(raw) {
		return "", corrupt("", "the name of a block is not UTF-8")
	}
	if bytes.IndexByte(raw, 0) >= 0 {
		return "", corrupt(string(raw), "holds a NUL byte")
	}
	return string(raw), nil
}

// checkRanges: blocks share no byte with each other or the table; their order in the table means nothing.
func checkRanges(blocks []*Block, position, size int64) error {
	sorted := append([]*Block(nil), blocks...)
	sort.SliceStable(sorted, func(a, b int) bool { return sorted[a].DataOffset < sorted[b].DataOffset })
	for _, block := range sorted {
		if block.DiskSize == 0 {
			continue
		}
		if block.DataOffset < position {
			return &Error{CorruptLayout, "overlaps what is before it", block.Name, salvageHint}
		}
		position = block.DataOffset + block.DiskSize
		if position > size {
			return fail(Truncated, block.Name, "lies past the end of the file")
		}
	}
	return nil
}
