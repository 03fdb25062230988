package wshard

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"
)

// RowSource is rows of numbers, or texts, where they lie.
type RowSource interface {
	// Spec is the dtype, one of the thirteen or "text" or "json", and the shape of one row.
	Spec() TensorSpec
	Length() int64
	// Bytes are those of rows [start, end): numbers in C order, texts joined as UTF-8.
	Bytes(start, end int64) ([]byte, error)
}

// TextSource is a RowSource of texts.
type TextSource interface {
	RowSource
	// Values are the texts, or the JSON values, of rows [start, end).
	Values(start, end int64) ([]any, error)
}

type blockRows struct {
	shard  *Shard
	block  string
	spec   TensorSpec
	length int64
}

func (r *blockRows) Spec() TensorSpec { return r.spec }
func (r *blockRows) Length() int64    { return r.length }
func (r *blockRows) Bytes(start, end int64) ([]byte, error) {
	row := r.spec.rowBytes()
	return r.shard.ReadRange(r.block, start*row, end*row, max(1, row))
}

type noRows struct{ spec TensorSpec }

func (r noRows) Spec() TensorSpec                 { return r.spec }
func (r noRows) Length() int64                    { return 0 }
func (r noRows) Bytes(_, _ int64) ([]byte, error) { return []byte{}, nil }

type textRows struct {
	encoding   string
	data, ends RowSource
	block      string
}

func (r *textRows) Spec() TensorSpec { return TensorSpec{DType: r.encoding} }
func (r *textRows) Length() int64    { return r.ends.Length() }

func (r *textRows) Bytes(start, end int64) ([]byte, error) {
	bounds, err := r.bounds(start, end)
	if err != nil {
		return nil, err
	}
	return r.data.Bytes(bounds[0], bounds[len(bounds)-1])
}

func (r *textRows) Values(start, end int64) ([]any, error) {
	bounds, err := r.bounds(start, end)
	if err != nil {
		return nil, err
	}
	data, err := r.data.Bytes(bounds[0], bounds[len(bounds)-1])
	if err != nil {
		return nil, err
	}
	out := []any{}
	for i, high := range bounds[1:] {
		part := data[bounds[i]-bounds[0] : high-bounds[0]]
		if r.encoding == "json" {
			value, err := parseJSON(part)
			if err != nil {
				return nil, about(r.block, err)
			}
			out = append(out, value)
		} else if !utf8.Valid(part) {
			return nil, corrupt(r.block, "holds text that is not UTF-8")
		} else {
			out = append(out, string(part))
		}
	}
	return out, nil
}

// bounds: where value start begins, then where each value of [start, end) ends.
func (r *textRows) bounds(start, end int64) ([]int64, error) {
	if start == end {
		return []int64{0}, nil
	}
	data, err := r.ends.Bytes(max(0, start-1), end)
	if err != nil {
		return nil, err
	}
	var bounds []int64
	if start == 0 {
		bounds = append(bounds, 0)
	}
	bounds = append(bounds, Int64s(data)...)
	whole, last, before := r.data.Length(), bounds[len(bounds)-1], int64(0)
	for _, each := range bounds {
		if each < before {
			last = whole + 1
		}
		before = each
	}
	if last > whole || (end == r.Length() && last != whole) {
		return nil, corrupt(r.block, "the ends of its values are not those of its bytes")
	}
	return bounds, nil
}

// Int64s reads bytes as i64.
func Int64s(data []byte) []int64 {
	out := make([]int64, len(data)/8)
	for i := range out {
		out[i] = int64(little.Uint64(data[8*i:]))
	}
	return out
}

// joinedRows are the rows of several sources one after the other, each opened when one of its rows is asked for.
type joinedRows struct {
	spec   TensorSpec
	starts []int64
	opened func(index int) (RowSource, error)
}

func joinRows(spec TensorSpec, lengths []int64, opened func(int) (RowSource, error)) RowSource {
	starts := []int64{0}
	for _, each := range lengths {
		starts = append(starts, starts[len(starts)-1]+each)
	}
	rows := &joinedRows{spec, starts, opened}
	if spec.DType == "text" || spec.DType == "json" {
		return &joinedTexts{rows}
	}
	return rows
}

func (r *joinedRows) Spec() TensorSpec { return r.spec }
func (r *joinedRows) Length() int64    { return r.starts[len(r.starts)-1] }

func (r *joinedRows) Bytes(start, end int64) ([]byte, error) {
	out := []byte{}
	err := r.each(start, end, func(rows RowSource, low, high int64) error {
		data, err := rows.Bytes(low, high)
		out = append(out, data...)
		return err
	})
	return out, err
}

func (r *joinedRows) each(start, end int64, read func(rows RowSource, low, high int64) error) error {
	for index := 0; index+1 < len(r.starts); index++ {
		low, high := r.starts[index], r.starts[index+1]
		if low >= end || high <= start || low == high {
			continue
		}
		rows, err := r.opened(index)
		if err != nil {
			return err
		}
		if !sameSpec(rows.Spec(), r.spec) || rows.Length() != high-low {
			return corrupt("", "chunk %d does not hold the rows its list promises", index)
		}
		if err := read(rows, max(start, low)-low, min(end, high)-low); err != nil {
			return err
		}
	}
	return nil
}

type joinedTexts struct{ *joinedRows }

func (r *joinedTexts) Values(start, end int64) ([]any, error) {
	out := []any{}
	err := r.each(start, end, func(rows RowSource, low, high int64) error {
		values, err := rows.(TextSource).Values(low, high)
		out = append(out, values...)
		return err
	})
	return out, err
}

func sameSpec(a, b TensorSpec) bool {
	if a.DType != b.DType || len(a.Shape) != len(b.Shape) {
		return false
	}
	for i, side := range a.Shape {
		if b.Shape[i] != side {
			return false
		}
	}
	return true
}

// joinedBits are the packed sign bits of several chunks as those of the whole.
type joinedBits struct {
	lengths []int64
	rows    int64
	bytes   int64
	opened  func(index int) (RowSource, error)
	once    sync.Once
	whole   []byte
	err     error
}

func joinBits(lengths []int64, opened func(int) (RowSource, error)) (RowSource, error) {
	found := &joinedBits{lengths: lengths, opened: opened}
	var dims int64
	for index, length := range lengths {
		found.rows += length
		if length > 0 && dims == 0 {
			first, err := opened(index)
			if err != nil {
				return nil, err
			}
			dims = first.Length() / ((length + 7) / 8)
		}
	}
	found.bytes = dims * ((found.rows + 7) / 8)
	return found, nil
}

func (r *joinedBits) Spec() TensorSpec { return TensorSpec{DType: "u8"} }
func (r *joinedBits) Length() int64    { return r.bytes }

func (r *joinedBits) Bytes(start, end int64) ([]byte, error) {
	r.once.Do(func() { r.whole, r.err = r.join() })
	if r.err != nil {
		return nil, r.err
	}
	return r.whole[start:end], nil
}

func (r *joinedBits) join() ([]byte, error) {
	out := make([]byte, r.bytes)
	rowBytes, at := (r.rows+7)/8, int64(0)
	for index, length := range r.lengths {
		if length == 0 {
			continue
		}
		rows, err := r.opened(index)
		if err != nil {
			return nil, err
		}
		data, err := rows.Bytes(0, rows.Length())
		if err != nil {
			return nil, err
		}
		size := (length + 7) / 8
		if int64(len(data))*rowBytes != size*r.bytes {
			return nil, corrupt("", "%d bytes are no residual of %d steps", len(data), length)
		}
		for dim := int64(0); dim*size < int64(len(data)); dim++ {
			for step := int64(0); step < length; step++ {
				bit := data[dim*size+step/8] >> (step % 8) & 1
				out[dim*rowBytes+(at+step)/8] |= bit << ((at + step) % 8)
			}
		}
		at += length
	}
	return out, nil
}

// Channel is one channel: what it holds, and its rows when they are asked for.
type Channel struct {
	// Name is that of its block, which no other channel has.
	Name string
	// Lane is signal, action, omen, uncert, residual, reward, done or truncated.
	Lane string
	// ID is the name inside its lane.
	ID string
	// Part is the role it plays.
	Part Part
	// Rows are where they lie.
	Rows RowSource
	// Clock holds the channel's own times where it does not have a row per step, else nil.
	Clock RowSource
	// About is what the file says about it beyond the format.
	About Object
}

func newChannel(name, lane, id string, rows, clock RowSource, said Object) *Channel {
	part := Part{Role: "observation"}
	if lane != "signal" {
		part = guessPart(name, false)
	}
	if said == nil {
		said = Object{}
	}
	return &Channel{name, lane, id, part, rows, clock, said}
}

// DType is one of the thirteen, or "text" or "json".
func (c *Channel) DType() string { return c.Rows.Spec().DType }

// Shape is that of one row.
func (c *Channel) Shape() []int64 { return c.Rows.Spec().Shape }

// Length is how many rows there are.
func (c *Channel) Length() int64 { return c.Rows.Length() }

// Bytes are those of rows [start, end): numbers in C order, texts joined as UTF-8.
func (c *Channel) Bytes(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > c.Length() {
		return nil, fail(OutOfRange, c.Name, "rows [%d, %d) of %d", start, end, c.Length())
	}
	return c.Rows.Bytes(start, end)
}

// All are the bytes of all rows.
func (c *Channel) All() ([]byte, error) { return c.Bytes(0, c.Length()) }

// Float64s are rows [start, end) of a channel of numbers, one after the other; i64 and u64 may be rounded.
func (c *Channel) Float64s(start, end int64) ([]float64, error) {
	data, err := c.Bytes(start, end)
	if err != nil {
		return nil, err
	}
	return Float64s(c.DType(), data)
}

// Texts are the values of rows [start, end) of a text or JSON channel.
func (c *Channel) Texts(start, end int64) ([]any, error) {
	rows, isText := c.Rows.(TextSource)
	if !isText {
		return nil, fail(SchemaMismatch, c.Name, "holds %s, no text", c.DType())
	}
	if start < 0 || start > end || end > c.Length() {
		return nil, fail(OutOfRange, c.Name, "rows [%d, %d) of %d", start, end, c.Length())
	}
	return rows.Values(start, end)
}

// OwnTimesNs are the times of its own clock; nil where it has a row per step.
func (c *Channel) OwnTimesNs() ([]int64, error) {
	if c.Clock == nil {
		return nil, nil
	}
	data, err := c.Clock.Bytes(0, c.Clock.Length())
	return Int64s(data), err
}

// Float64s reads bytes of this dtype as numbers.
func Float64s(dtype string, data []byte) ([]float64, error) {
	size := DTypes[dtype]
	if size == 0 {
		return nil, fail(SchemaMismatch, "", "%s are no numbers", dtype)
	}
	out := make([]float64, int64(len(data))/size)
	for i := range out {
		at := data[int64(i)*size:]
		switch dtype {
		case "f64":
			out[i] = math.Float64frombits(little.Uint64(at))
		case "f32":
			out[i] = float64(math.Float32frombits(little.Uint32(at)))
		case "bf16":
			out[i] = float64(math.Float32frombits(uint32(little.Uint16(at)) << 16))
		case "f16":
			out[i] = halfToFloat(little.Uint16(at))
		case "i64":
			out[i] = float64(int64(little.Uint64(at)))
		case "i32":
			out[i] = float64(int32(little.Uint32(at)))
		case "i16":
			out[i] = float64(int16(little.Uint16(at)))
		case "i8":
			out[i] = float64(int8(at[0]))
		case "u64":
			out[i] = float64(little.Uint64(at))
		case "u32":
			out[i] = float64(little.Uint32(at))
		case "u16":
			out[i] = float64(little.Uint16(at))
		default:
			out[i] = float64(at[0])
		}
	}
	return out, nil
}

func halfToFloat(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&31), float64(bits&1023)
	if bits&0x8000 != 0 {
		sign = -1
	}
	switch {
	case exponent == 31 && fraction != 0:
		return math.NaN()
	case exponent == 31:
		return sign * math.Inf(1)
	case exponent == 0:
		return sign * math.Ldexp(fraction/1024, -14)
	}
	return sign * math.Ldexp(1+fraction/1024, exponent-15)
}

// Episode is everything the metadata of an episode says, and its channels.
type Episode struct {
	ID, EnvID string
	// Length is the number of steps.
	Length   int64
	Timebase Timebase
	Metadata Object
	Models   []any
	// About is what the file says about the episode beyond the format.
	About Object
	Chunk *ChunkPosition
	// Channels lane by lane, each in the order of the file; reward and flags come last.
	Channels []*Channel
	// Clock holds the times of the steps, where the file has them, else nil.
	Clock RowSource
	// Blocks are those that are no part of the format; Shard is where they lie.
	Blocks []string
	Shard  *Shard
	// Chunks are set where this is an episode in chunks.
	Chunks *ChunkList
	// Recording is set where this is a packed one.
	Recording *Recording
}

// Channel is the channel of this block, or of this id; nil if there is none.
func (e *Episode) Channel(name string) *Channel {
	for _, each := range e.Channels {
		if each.Name == name {
			return each
		}
	}
	for _, each := range e.Channels {
		if each.ID == name {
			return each
		}
	}
	return nil
}

// maxTimes is how many times are made of a rate at once: a length that nothing in the file backs must not take memory.
const maxTimes = 1 << 28

// TimesNs are the times of the steps in nanoseconds, from the timestamps or from the rate.
func (e *Episode) TimesNs() ([]int64, error) {
	if e.Clock != nil {
		data, err := e.Clock.Bytes(0, e.Length)
		return Int64s(data), err
	}
	interval := 1e9 / e.Timebase.TickHz
	if e.Length > maxTimes || float64(e.Length)*interval >= 1<<63 {
		return nil, fail(LimitExceeded, "", "the times of %d steps are too many at once", e.Length)
	}
	out := make([]int64, e.Length)
	for step := range out {
		out[step] = int64(math.RoundToEven(float64(step) * interval))
	}
	return out, nil
}

// Beside opens another file of the folder of a chunk list, by its name in the list.
type Beside func(name string) (io.ReaderAt, int64, error)

// Open opens an episode: a shard, a chunk list or a packed recording. Only metadata is read until rows are asked for.
// beside opens the chunks of a chunk list and may be nil for anything else.
func Open(reader io.ReaderAt, size int64, beside Beside) (*Episode, error) {
	shard, err := OpenShard(reader, size)
	if err != nil {
		return nil, err
	}
	if shard.Role == RoleChunkList {
		return openChunks(shard, beside)
	}
	return episodeOf(shard)
}

// OpenFile opens an episode in a file, and the chunks beside it. Close what it returns when done with the episode.
func OpenFile(path string) (*Episode, io.Closer, error) {
	files := &openFiles{}
	reader, size, err := files.open(path)
	if err != nil {
		return nil, nil, err
	}
	episode, err := Open(reader, size, func(name string) (io.ReaderAt, int64, error) {
		return files.open(filepath.Join(filepath.Dir(path), filepath.FromSlash(name)))
	})
	if err != nil {
		files.Close()
		return nil, nil, err
	}
	return episode, files, nil
}

type openFiles struct {
	lock  sync.Mutex
	files []*os.File
}

func (f *openFiles) open(path string) (io.ReaderAt, int64, error) {
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, 0, fail(NotFound, "", "no such file: %s", path)
	}
	if err != nil {
		return nil, 0, err
	}
	f.lock.Lock()
	f.files = append(f.files, file)
	f.lock.Unlock()
	stat, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	return file, stat.Size(), nil
}

func (f *openFiles) Close() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	var first error
	for _, file := range f.files {
		if err := file.Close(); err != nil && first == nil {
			first = err
		}
	}
	f.files = nil
	return first
}

func episodeOf(shard *Shard) (*Episode, error) {
	if shard.Role != RoleEpisode {
		return nil, corrupt("", "a shard of role %d is no episode", shard.Role)
	}
	s, err := readSchema(shard)
	if err != nil {
		return nil, err
	}
	episode := &Episode{ID: s.id, EnvID: s.envID, Length: s.length, Timebase: s.timebase, Metadata: s.metadata,
		Models: s.models, About: s.about, Chunk: s.chunk, Shard: shard}
	if err := (&loader{shard, s, episode, setOf(shard.names...)}).fill(); err != nil {
		return nil, err
	}
	if shard.Has(metaDirectory) {
		if episode.Recording, err = openRecording(shard, episode); err != nil {
			return nil, err
		}
	}
	return episode, nil
}

// loader routes the blocks of one shard into the channels of one episode.
type loader struct {
	shard   *Shard
	schema  *schema
	episode *Episode
	left    map[string]bool
}

func (l *loader) take(name string) bool {
	isThere := l.left[name]
	delete(l.left, name)
	return isThere
}

func (l *loader) fill() error {
	for _, name := range []string{metaWShard, metaEpisode, metaChannels, metaModels} {
		l.take(name)
	}
	for _, text := range l.schema.texts {
		l.take(text.ends)
	}
	for _, spec := range l.schema.channels {
		if err := l.addChannel(spec); err != nil {
			return err
		}
	}
	var flags []*Channel
	for _, name := range []string{rewardBlock, doneBlock, truncBlock} {
		flag, err := l.flag(name)
		if err != nil {
			return err
		}
		if flag != nil {
			flags = append(flags, flag)
		}
	}
	l.take(ticksBlock)
	if l.take(stampsBlock) {
		clock, err := l.numbers(stampsBlock, TensorSpec{DType: "i64"}, l.schema.length)
		if err != nil {
			return err
		}
		l.episode.Clock = clock
	} else {
		// One existing writer says that it has times and stores none: its steps have a rate.
		l.episode.Timebase.Type = "ticks"
	}
	for _, name := range l.shard.names {
		if l.left[name] && !isAid(name) {
			if err := l.addUnlisted(name); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(l.episode.Channels, func(a, b *Channel) int {
		return slices.Index(lanes, a.Lane) - slices.Index(lanes, b.Lane)
	})
	l.episode.Channels = append(l.episode.Channels, flags...)
	for _, name := range l.shard.names {
		if l.left[name] && !isAid(name) {
			l.episode.Blocks = append(l.episode.Blocks, name)
		}
	}
	return nil
}

var lanes = []string{"signal", "action", "omen", "uncert", "residual"}

// isAid says whether a block only helps to read another.
func isAid(name string) bool {
	return strings.HasPrefix(name, piecesPrefix) || strings.HasPrefix(name, seekPrefix)
}

func (l *loader) addChannel(spec channelSpec) error {
	l.take(spec.block)
	length := l.schema.length
	var clock RowSource
	var err error
	if spec.clock != "" {
		l.take(spec.clock)
		if clock, err = l.numbers(spec.clock, TensorSpec{DType: "i64"}, -1); err != nil {
			return err
		}
		length = clock.Length()
	}
	var rows RowSource = noRows{spec.tensor} // a writer that never saw a step has nothing to store
	if l.shard.Has(spec.block) {
		if rows, err = l.rows(spec.block, spec.tensor, length); err != nil {
			return err
		}
	} else if length > 0 {
		return corrupt(spec.block, "is missing, though channel %q is listed", spec.id)
	}
	_, id, _ := strings.Cut(spec.block, "/")
	l.episode.Channels = append(l.episode.Channels, newChannel(spec.block, spec.lane, id, rows, clock, spec.about))
	return nil
}

// addUnlisted adds lanes, and the actions one existing writer does not list.
func (l *loader) addUnlisted(name string) error {
	lane, rest, _ := strings.Cut(name, "/")
	spec, isKnown := l.schema.lanes[name]
	if !isKnown {
		spec, isKnown = l.schema.guessSpec(name, l.shard.rawSize(name))
	}
	length := l.schema.length
	switch lane {
	case "action", "omen", "uncert":
	case "residual":
		length = -1
	default:
		return nil
	}
	if rest == "" || !isKnown {
		return nil
	}
	l.take(name)
	rows, err := l.rows(name, spec, length)
	if err != nil {
		return err
	}
	l.episode.Channels = append(l.episode.Channels, newChannel(name, lane, rest, rows, nil, l.schema.blockAbout[name]))
	return nil
}

// flag is rewards or flags: in their own block, or exactly as they were in a block beside it.
func (l *loader) flag(name string) (*Channel, error) {
	isThere := l.take(name)
	exact, isExact := l.schema.flags[name]
	block := name
	if isExact && !fitsOwnBlock(name, exact) {
		block = exactBlocks[name]
		l.take(block)
	} else {
		if !isThere || l.schema.absent[name] {
			return nil, nil
		}
		// One existing writer stores an empty block where there is no reward or done.
		if l.schema.length > 0 && l.shard.rawSize(name) == 0 {
			return nil, nil
		}
		if !isExact {
			var err error
			if exact, err = l.foreignDType(name); err != nil {
				return nil, err
			}
		}
	}
	rows, err := l.numbers(block, TensorSpec{DType: exact}, l.schema.length)
	if err != nil {
		return nil, err
	}
	return newChannel(name, name, name, rows, nil, l.schema.blockAbout[name]), nil
}

// foreignDType: one existing writer stores rewards and flags in whatever dtype it was given and does not say which.
func (l *loader) foreignDType(name string) (string, error) {
	plain := "u8"
	if name == rewardBlock {
		plain = "f32"
	}
	size, length := l.shard.rawSize(name), l.schema.length
	if size == DTypes[plain]*length || length == 0 || size%length != 0 {
		return plain, nil
	}
	width := size / length
	wide, isWide := map[int64]struct {
		asFloat, asInt string
		limit          int64
	}{1: {"i8", "u8", 1 << 7}, 2: {"f16", "i16", 1 << 10}, 4: {"f32", "i32", 1 << 23}, 8: {"f64", "i64", 1 << 52}}[width]
	if !isWide {
		return plain, nil
	}
	data, err := l.shard.Read(name)
	if err != nil {
		return "", err
	}
	isAny := false
	// The bits of a small whole number are those of a denormal or an odd NaN, which nobody uses as a reward or flag;
	// of single bytes only a small number below zero is likely to have the highest bit.
	for at := int64(0); at < size; at += width {
		var bits int64
		switch width {
		case 1:
			bits = int64(data[at])
		case 2:
			bits = int64(int16(little.Uint16(data[at:])))
		case 4:
			bits = int64(int32(little.Uint32(data[at:])))
		default:
			bits = int64(little.Uint64(data[at:]))
		}
		if bits <= -wide.limit || bits >= wide.limit {
			return wide.asFloat, nil
		}
		isAny = isAny || bits != 0
	}
	if isAny {
		return wide.asInt, nil
	}
	return wide.asFloat, nil
}

// rows are those of a channel: numbers, or text where the metadata says so.
func (l *loader) rows(name string, spec TensorSpec, length int64) (RowSource, error) {
	text, isText := l.schema.texts[name]
	if !isText {
		return l.numbers(name, spec, length)
	}
	ends, err := l.numbers(text.ends, TensorSpec{DType: "i64"}, length)
	if err != nil {
		return nil, err
	}
	data, err := l.numbers(name, spec, -1)
	if err != nil {
		return nil, err
	}
	return &textRows{text.encoding, data, ends, name}, nil
}

// numbers are the rows of a block whose size is exactly what dtype, shape and length say; -1 for as many as there are.
func (l *loader) numbers(name string, spec TensorSpec, length int64) (RowSource, error) {
	if !l.shard.Has(name) {
		return nil, corrupt(name, "is missing")
	}
	size, row := l.shard.rawSize(name), spec.rowBytes()
	if length < 0 {
		length = l.schema.length
		if row > 0 {
			length = size / row
		}
	}
	// The product may not fit where the metadata is damaged.
	if (row == 0 && size != 0) || (row > 0 && (size/row != length || size%row != 0)) {
		return nil, corrupt(name, "has %d bytes, which %d rows of %s%v do not", size, length, spec.DType, spec.Shape)
	}
	return &blockRows{l.shard, name, spec, length}, nil
}

func fitsOwnBlock(name, dtype string) bool {
	if name == rewardBlock {
		return dtype == "f32"
	}
	return dtype == "bool" || dtype == "u8"
}

// profileOf gives everything that must be the same in all chunks of an episode, as one text.
func profileOf(episode *Episode) (string, error) {
	channels := []string{}
	for _, each := range episode.Channels {
		shape := each.Shape()
		if each.Lane == each.Name {
			shape = nil // rewards and flags have one value per step
		}
		text, err := dumpJSON([]any{each.Name, each.DType(), append([]int64{}, shape...), each.Clock != nil})
		if err != nil {
			return "", err
		}
		channels = append(channels, string(text))
	}
	sort.Strings(channels)
	var rate any = "times"
	if episode.Clock == nil {
		rate = episode.Timebase.TickHz
	}
	text, err := dumpJSON([]any{episode.ID, episode.EnvID, rate, channels, episode.Metadata, episode.Models, episode.About})
	return string(text), err
}
