package wshard

import (
	"encoding/binary"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	zstdMaxRatio   = 1 << 15
	lz4MaxRatio    = 255
	maxWindowBytes = 1 << 25
	zstdMagic      = 0xFD2FB528
	maxZstdBlock   = 128 << 10
)

var decoders = sync.Pool{New: func() any {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(maxBlockBytes), zstd.WithDecoderMaxWindow(1<<31))
	if err != nil {
		panic(err) // the options are fixed
	}
	return decoder
}}

// decode gives the decompressed bytes of a block, exactly rawSize of them.
func decode(codec string, data []byte, rawSize int64) ([]byte, error) {
	switch codec {
	case "zstd":
		return decodeZstd(data, rawSize)
	case "lz4":
		return decodeLz4(data, rawSize)
	}
	return data, nil
}

type frame struct {
	size        int64 // -1 where it does not say
	isSkippable bool
	window      uint64
	end         int64
}

var errFrame = corrupt("", "damaged zstd frame")

// readFrame finds the end of the frame that begins the data, reading no content.
func readFrame(data []byte) (frame, error) {
	if len(data) < 5 {
		return frame{}, errFrame
	}
	found := binary.LittleEndian.Uint32(data)
	if found&0xFFFFFFF0 == 0x184D2A50 {
		if len(data) < 8 {
			return frame{}, errFrame
		}
		end := 8 + int64(binary.LittleEndian.Uint32(data[4:]))
		if end > int64(len(data)) {
			return frame{}, errFrame
		}
		return frame{isSkippable: true, end: end}, nil
	}
	if found != zstdMagic {
		return frame{}, corrupt("", "not a zstd frame")
	}
	flags, at := data[4], 5
	isSingle := flags&0x20 != 0
	var window uint64
	if !isSingle {
		if len(data) < 6 {
			return frame{}, errFrame
		}
		base := uint64(1) << (10 + data[5]>>3)
		window = base + base/8*uint64(data[5]&7)
		at++
	}
	at += [4]int{0, 1, 2, 4}[flags&3]
	kind := flags >> 6
	sizeBytes := 1 << kind
	if kind == 0 && !isSingle {
		sizeBytes = 0
	}
	if at+sizeBytes > len(data) || flags&0x08 != 0 {
		return frame{}, errFrame
	}
	field := [8]byte{}
	copy(field[:], data[at:at+sizeBytes])
	size := binary.LittleEndian.Uint64(field[:])
	if kind == 1 {
		size += 256
	}
	at += sizeBytes
	limit := window
	if isSingle {
		window, limit = size, size
	}
	if limit > maxZstdBlock {
		limit = maxZstdBlock
	}
	position := int64(at)
	for isLast := false; !isLast; {
		if position+3 > int64(len(data)) {
			return frame{}, errFrame
		}
		header := uint32(data[position]) | uint32(data[position+1])<<8 | uint32(data[position+2])<<16
		isLast = header&1 != 0
		kind, stored := header>>1&3, int64(header>>3)
		if kind == 3 || uint64(stored) > limit {
			return frame{}, errFrame
		}
		if kind == 1 {
			stored = 1
		}
		position += 3 + stored
	}
	if flags&4 != 0 {
		position += 4
	}
	if position > int64(len(data)) {
		return frame{}, errFrame
	}
	out := frame{size: int64(size), window: window, end: position}
	if sizeBytes == 0 {
		out.size = -1
	} else if size > maxBlockBytes {
		out.size = maxBlockBytes + 1
	}
	return out, nil
}

// fill decodes one frame into the room behind out's length, never beyond its capacity; frame checksums are checked.
func fill(data, out []byte) ([]byte, error) {
	decoder := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(decoder)
	filled, err := decoder.DecodeAll(data, out)
	if err != nil {
		return nil, corrupt("", "damaged zstd frame (%v)", err)
	}
	return filled, nil
}

// checkExpansion refuses a claimed size beyond the limits of the format, before memory is allocated for it.
func checkExpansion(codec string, stored int, rawSize, maxRatio int64) error {
	size := int64(stored)
	if rawSize > size*maxRatio || rawSize > max(maxExpandedBytes, size*maxLargeRatio) {
		return fail(LimitExceeded, "", "%d %s bytes expand to %d, which is above the limit", size, codec, rawSize)
	}
	return nil
}

func decodeZstd(data []byte, rawSize int64) ([]byte, error) {
	if err := checkExpansion("zstd", len(data), rawSize, zstdMaxRatio); err != nil {
		return nil, err
	}
	first, err := readFrame(data)
	if err != nil {
		return nil, err
	}
	if first.size > rawSize {
		return nil, fail(LimitExceeded, "", "a zstd frame announces %d bytes where %d are allowed", first.size, rawSize)
	}
	if !first.isSkippable && first.size == rawSize && first.end != int64(len(data)) {
		return nil, corrupt("", "damaged zstd frame (more bytes than the frame has)")
	}
	out := make([]byte, 0, rawSize)
	for len(data) > 0 {
		found, err := readFrame(data)
		if err != nil {
			return nil, err
		}
		if !found.isSkippable {
			if found.size > rawSize-int64(len(out)) {
				return nil, corrupt("", "zstd frames hold more than announced")
			}
			if found.size < 0 && found.window > maxWindowBytes {
				return nil, corrupt("", "damaged zstd frame (its window is too large)")
			}
			if out, err = fill(data[:found.end], out); err != nil {
				return nil, err
			}
		}
		data = data[found.end:]
	}
	if int64(len(out)) != rawSize {
		return nil, corrupt("", "zstd frames do not hold the %d bytes announced", rawSize)
	}
	return out, nil
}

// decodeFrames joins neighbouring frames that end at these offsets and must hold exactly these sizes.
func decodeFrames(data []byte, ends, sizes []int64) ([]byte, error) {
	var total, start int64
	for _, size := range sizes {
		total += size
	}
	if err := checkExpansion("zstd", len(data), total, zstdMaxRatio); err != nil {
		return nil, err
	}
	out := make([]byte, 0, total)
	for i, end := range ends {
		part := data[start:end]
		found, err := readFrame(part)
		if err != nil {
			return nil, err
		}
		if found.isSkippable || found.size != sizes[i] || found.end != int64(len(part)) {
			return nil, corrupt("", "a zstd frame does not hold the %d bytes of the seek table", sizes[i])
		}
		if part[4]&4 == 0 { // nothing else vouches for a frame that is read alone
			return nil, corrupt("", "a zstd frame of a seek table has no checksum of its own")
		}
		before := int64(len(out))
		if out, err = fill(part, out); err != nil {
			return nil, err
		}
		if int64(len(out))-before != sizes[i] {
			return nil, errFrame
		}
		start = end
	}
	return out, nil
}

func decodeLz4(data []byte, rawSize int64) ([]byte, error) {
	if err := checkExpansion("lz4", len(data), rawSize, lz4MaxRatio); err != nil {
		return nil, err
	}
	damaged := corrupt("", "damaged LZ4 block")
	out := make([]byte, rawSize)
	at, filled := 0, 0
	length := func(start int) (int, bool) {
		if start < 15 {
			return start, true
		}
		for at < len(data) {
			start += int(data[at])
			at++
			if data[at-1] != 255 {
				return start, true
			}
		}
		return 0, false
	}
	for at < len(data) {
		token := data[at]
		at++
		literals, isWhole := length(int(token >> 4))
		if !isWhole || literals > len(data)-at || literals > len(out)-filled {
			return nil, damaged
		}
		copy(out[filled:], data[at:at+literals])
		at, filled = at+literals, filled+literals
		if at == len(data) {
			break
		}
		if len(data)-at < 2 {
			return nil, damaged
		}
		offset := int(data[at]) | int(data[at+1])<<8
		at += 2
		match, isWhole := length(int(token & 15))
		match += 4
		if !isWhole || offset == 0 || offset > filled || match > len(out)-filled || at == len(data) {
			return nil, damaged
		}
		// Byte by byte: a match may overlap what it makes.
		for end := filled + match; filled < end; filled++ {
			out[filled] = out[filled-offset]
		}
	}
	if filled != len(out) {
		return nil, corrupt("", "LZ4 block holds %d bytes, not %d", filled, rawSize)
	}
	return out, nil
}

type seekTable struct{ stored, raw []int64 }

const footerBytes = 9

func seekTableBytes(footer []byte) (int64, error) {
	none := corrupt("", "no zstd seek table at the end of a seekable block")
	if len(footer) < footerBytes {
		return 0, none
	}
	count := int64(binary.LittleEndian.Uint32(footer))
	if binary.LittleEndian.Uint32(footer[5:]) != seekTableMagic || footer[4]&0x7C != 0 {
		return 0, none
	}
	if count > maxFrames {
		return 0, corrupt("", "a seek table of %d frames is too large", count)
	}
	if footer[4]&0x80 != 0 {
		return 8 + count*12 + footerBytes, nil
	}
	return 8 + count*8 + footerBytes, nil
}

func unpackSeekTable(table []byte, diskSize, rawSize int64) (*seekTable, error) {
	entry := 8
	if table[len(table)-5]&0x80 != 0 {
		entry = 12
	}
	if binary.LittleEndian.Uint32(table) != skippableMagic || int(binary.LittleEndian.Uint32(table[4:])) != len(table)-8 {
		return nil, corrupt("", "damaged zstd seek table")
	}
	count := (len(table) - 8 - footerBytes) / entry
	found := &seekTable{make([]int64, count+1), make([]int64, count+1)}
	for i := 0; i < count; i++ {
		found.stored[i+1] = found.stored[i] + int64(binary.LittleEndian.Uint32(table[8+i*entry:]))
		found.raw[i+1] = found.raw[i] + int64(binary.LittleEndian.Uint32(table[12+i*entry:]))
	}
	if found.stored[count] != diskSize-int64(len(table)) || found.raw[count] != rawSize {
		return nil, corrupt("", "zstd seek table does not add up to the size of its block")
	}
	return found, nil
}
