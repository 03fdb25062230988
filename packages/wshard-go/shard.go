package wshard

import (
	"errors"
	"io"
	"sort"
	"sync"
)

const (
	headRead  = 64 << 10
	keepBytes = 64 << 20
	stepBytes = 8 << 20
)

// Shard is an open shard: its table was read and checked, its blocks are read when asked for. It is safe for use by
// several goroutines at once if its reader is.
type Shard struct {
	// Role is what kind of shard this is: 5 an episode, 4 a chunk list.
	Role uint8
	// IsChecksummed says whether header and table carry a checksum; else only structure and name hashes were checked.
	IsChecksummed bool
	// VerifyWindows false: a window of a large raw block without checksums for windows (files of other programs) is
	// read alone and unchecked. Set it before the first read; OpenShard sets it true.
	VerifyWindows bool

	reader io.ReaderAt
	size   int64
	head   []byte
	blocks map[string]*Block
	names  []string

	lock     sync.Mutex
	kept     map[string][]byte
	keptSize int64
	verified map[string]bool
	pieces   map[string]*pieces
	tables   map[string]*seekTable
}

type pieces struct {
	rows      int64
	checksums []uint32
	isChecked []bool
}

// OpenShard opens a shard of this many bytes.
func OpenShard(reader io.ReaderAt, size int64) (*Shard, error) {
	head, err := readExactly(reader, 0, min(size, headRead))
	if err != nil {
		return nil, err
	}
	h, err := unpackHeader(head, size)
	if err != nil {
		return nil, err
	}
	if h.dataOffset > int64(len(head)) {
		if head, err = readExactly(reader, 0, h.dataOffset); err != nil {
			return nil, err
		}
	}
	blocks, isChecksummed, err := parseTable(h, head, size)
	if err != nil {
		return nil, err
	}
	shard := &Shard{Role: h.role, IsChecksummed: isChecksummed, VerifyWindows: true, reader: reader, size: size,
		head: head, blocks: map[string]*Block{}, kept: map[string][]byte{}, verified: map[string]bool{},
		pieces: map[string]*pieces{}, tables: map[string]*seekTable{}}
	for _, block := range blocks {
		shard.blocks[block.Name] = block
		shard.names = append(shard.names, block.Name)
	}
	return shard, nil
}

func readExactly(reader io.ReaderAt, start, end int64) ([]byte, error) {
	data := make([]byte, end-start)
	got, err := reader.ReadAt(data, start)
	if int64(got) == end-start {
		return data, nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fail(Truncated, "", "%d of %d bytes at %d", got, end-start, start)
	}
	return nil, err
}

// Names are the names of all blocks, in the order of the table.
func (s *Shard) Names() []string { return append([]string(nil), s.names...) }

// Has says whether there is a block of this name.
func (s *Shard) Has(name string) bool { return s.blocks[name] != nil }

// Block is where and how a block is stored.
func (s *Shard) Block(name string) (*Block, error) {
	if found := s.blocks[name]; found != nil {
		return found, nil
	}
	return nil, fail(NotFound, name, "no such block")
}

func (s *Shard) rawSize(name string) int64 { return s.blocks[name].RawSize }

// Read gives the decompressed, verified bytes of a block; they are not to be changed.
func (s *Shard) Read(name string) ([]byte, error) {
	block, err := s.Block(name)
	if err != nil {
		return nil, err
	}
	s.lock.Lock()
	kept := s.kept[name]
	s.lock.Unlock()
	if kept != nil {
		return kept, nil
	}
	var data []byte
	if block.IsSeekable {
		data, err = s.readFrames(block, 0, block.RawSize)
	} else if data, err = s.stored(block, 0, block.DiskSize); err == nil {
		data, err = decode(block.Codec, data, block.RawSize)
	}
	if err != nil {
		return nil, about(name, err)
	}
	if crc32c(data, 0) != block.CRC32C {
		return nil, fail(Checksum, name, "its bytes do not match their checksum")
	}
	s.keep(name, data)
	return data, nil
}

func (s *Shard) keep(name string, data []byte) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.verified[name] = true
	if len(data) > keepBytes || s.kept[name] != nil {
		return
	}
	if s.keptSize+int64(len(data)) > keepBytes {
		s.kept, s.keptSize = map[string][]byte{}, 0
	}
	s.kept[name] = data
	s.keptSize += int64(len(data))
}

// ReadJSON gives a block that holds a JSON object.
func (s *Shard) ReadJSON(name string) (Object, error) {
	data, err := s.Read(name)
	if err != nil {
		return nil, err
	}
	found, err := parseJSONObject(data)
	return found, about(name, err)
}

// ReadRange gives bytes [start, end) of the decompressed block, reading and verifying as little as holds them.
// rowBytes is what one row of the block has: its checksums are of whole rows.
func (s *Shard) ReadRange(name string, start, end, rowBytes int64) ([]byte, error) {
	block, err := s.Block(name)
	if err != nil {
		return nil, err
	}
	if start < 0 || start > end || end > block.RawSize || rowBytes < 1 {
		return nil, fail(OutOfRange, name, "bytes [%d, %d) of %d", start, end, block.RawSize)
	}
	if start == end {
		return []byte{}, nil
	}
	s.lock.Lock()
	isKept, isVerified := s.kept[name] != nil, s.verified[name]
	s.lock.Unlock()
	isLargeRaw := block.Codec == "none" && block.RawSize > piecesFromBytes
	switch {
	case isKept:
	case block.IsSeekable:
		data, err := s.readFrames(block, start, end)
		return data, about(name, err)
	case isLargeRaw && isVerified:
		return s.stored(block, start, end)
	case isLargeRaw && s.Has(piecesPrefix+name):
		return s.readPieces(block, start, end, rowBytes)
	case isLargeRaw && !s.VerifyWindows:
		return s.stored(block, start, end)
	case isLargeRaw && block.RawSize > keepBytes:
		if err := s.checkUnread(block); err != nil {
			return nil, err
		}
		return s.stored(block, start, end)
	}
	whole, err := s.Read(name)
	if err != nil {
		return nil, err
	}
	return whole[start:end], nil
}

func (s *Shard) checkUnread(block *Block) error {
	var checksum uint32
	for at := int64(0); at < block.DiskSize; at += stepBytes {
		data, err := s.stored(block, at, min(at+stepBytes, block.DiskSize))
		if err != nil {
			return err
		}
		checksum = crc32c(data, checksum)
	}
	if checksum != block.CRC32C {
		return fail(Checksum, block.Name, "its bytes do not match their checksum")
	}
	s.lock.Lock()
	s.verified[block.Name] = true
	s.lock.Unlock()
	return nil
}

func (s *Shard) piecesOf(name string) (*pieces, error) {
	s.lock.Lock()
	found := s.pieces[name]
	s.lock.Unlock()
	if found != nil {
		return found, nil
	}
	data, err := s.Read(piecesPrefix + name)
	if err != nil {
		return nil, err
	}
	if len(data) < 4 || len(data)%4 != 0 {
		return nil, corrupt(piecesPrefix+name, "a list of piece checksums has an odd size")
	}
	found = &pieces{rows: int64(little.Uint32(data))}
	if found.rows == 0 {
		return nil, corrupt(piecesPrefix+name, "a list of piece checksums has pieces of no rows")
	}
	for at := 4; at < len(data); at += 4 {
		found.checksums = append(found.checksums, little.Uint32(data[at:]))
	}
	found.isChecked = make([]bool, len(found.checksums))
	s.lock.Lock()
	defer s.lock.Unlock()
	s.pieces[name] = found
	return found, nil
}

func (s *Shard) readPieces(block *Block, start, end, rowBytes int64) ([]byte, error) {
	found, err := s.piecesOf(block.Name)
	if err != nil {
		return nil, err
	}
	size := found.rows * rowBytes
	first, last := start/size, (end+size-1)/size
	if last > int64(len(found.checksums)) {
		return nil, corrupt(block.Name, "has fewer piece checksums than pieces")
	}
	s.lock.Lock()
	isChecked := true
	for _, each := range found.isChecked[first:last] {
		isChecked = isChecked && each
	}
	s.lock.Unlock()
	if isChecked {
		return s.stored(block, start, end)
	}
	low := first * size
	data, err := s.stored(block, low, min(last*size, block.RawSize))
	if err != nil {
		return nil, err
	}
	for index := first; index < last; index++ {
		piece := data[index*size-low : min((index+1)*size-low, int64(len(data)))]
		if crc32c(piece, 0) != found.checksums[index] {
			return nil, fail(Checksum, block.Name, "piece %d does not match its checksum", index)
		}
	}
	s.lock.Lock()
	for index := first; index < last; index++ {
		found.isChecked[index] = true
	}
	s.lock.Unlock()
	return data[start-low : end-low], nil
}

func (s *Shard) seekTableOf(block *Block) (*seekTable, error) {
	s.lock.Lock()
	found := s.tables[block.Name]
	s.lock.Unlock()
	if found != nil {
		return found, nil
	}
	size := block.DiskSize
	// One read for most: so many frames hold at least 60 MB.
	guess := min(size, 8<<10)
	tail, err := s.stored(block, size-guess, size)
	if err != nil {
		return nil, err
	}
	length, err := seekTableBytes(tail[max(0, guess-footerBytes):])
	if err != nil {
		return nil, err
	}
	if length > size {
		return nil, corrupt(block.Name, "its seek table is larger than the block")
	}
	if length > guess {
		if tail, err = s.stored(block, size-length, size); err != nil {
			return nil, err
		}
	}
	found, err = unpackSeekTable(tail[int64(len(tail))-length:], size, block.RawSize)
	if err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.tables[block.Name] = found
	return found, nil
}

func (s *Shard) readFrames(block *Block, start, end int64) ([]byte, error) {
	table, err := s.seekTableOf(block)
	if err != nil || start == end {
		return []byte{}, err
	}
	first := sort.Search(len(table.raw), func(i int) bool { return table.raw[i] > start }) - 1
	last := sort.Search(len(table.raw), func(i int) bool { return table.raw[i] >= end })
	base := table.stored[first]
	data, err := s.stored(block, base, table.stored[last])
	if err != nil {
		return nil, err
	}
	var ends, sizes []int64
	for i := first; i < last; i++ {
		ends = append(ends, table.stored[i+1]-base)
		sizes = append(sizes, table.raw[i+1]-table.raw[i])
	}
	raw, err := decodeFrames(data, ends, sizes)
	if err != nil {
		return nil, err
	}
	skip := start - table.raw[first]
	return raw[skip : skip+end-start], nil
}

func (s *Shard) stored(block *Block, start, end int64) ([]byte, error) {
	if start == end {
		return []byte{}, nil
	}
	low, high := block.DataOffset+start, block.DataOffset+end
	if high <= int64(len(s.head)) {
		return s.head[low:high:high], nil
	}
	return readExactly(s.reader, low, high)
}
