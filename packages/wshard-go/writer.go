package wshard

import (
	"bytes"
	"io"
	"math"
	"strings"
	"unicode"

	"github.com/klauspost/compress/zstd"
)

// ChannelData is a channel to be written.
type ChannelData struct {
	// Name is that of its block: signal/joint, action/torque, omen/joint/model, reward, done, truncated, …
	Name string
	// DType is one of the thirteen, or "text" or "json".
	DType string
	// Shape is that of one row; empty for one value per row.
	Shape []int64
	// Data are the bytes of all rows: numbers little-endian in C order, texts joined as UTF-8.
	Data []byte
	// Ends say where each value of a text or JSON channel ends.
	Ends []int64
	// TimesNs are the channel's own times, where it does not have a row per step.
	TimesNs []int64
	// HasClock says that TimesNs are there even if there are none of them.
	HasClock bool
	About    Object
}

// NamedBlock is a block that is no part of the format.
type NamedBlock struct {
	Name string
	Data []byte
}

// EpisodeData is an episode to be written.
type EpisodeData struct {
	ID, EnvID string
	// Length is the number of steps.
	Length   int64
	Timebase Timebase
	// TimesNs are the times of the steps; nil where a rate says them.
	TimesNs  []int64
	Metadata Object
	Models   []any
	About    Object
	Chunk    *ChunkPosition
	Channels []ChannelData
	Blocks   []NamedBlock
	// AsStored says that times and flags are those of a file and written as they are; new times increase, new flags
	// are 0 or 1.
	AsStored bool
}

// WriteOptions say how blocks are stored.
type WriteOptions struct {
	// Compression is "none" (or empty) or "zstd".
	Compression string
}

type tensor struct {
	name        string
	raw         []byte
	rowBytes    int64
	contentType uint16
	isPlain     bool // never compressed, without checksums of its pieces
	stored      []byte
	flags       uint16
}

func mismatch(block, format string, args ...any) error {
	return fail(SchemaMismatch, block, format, args...)
}

// Write writes an episode as one shard. What a reader would refuse is an error before anything is written.
func Write(out io.Writer, episode *EpisodeData, options WriteOptions) error {
	if options.Compression != "" && options.Compression != "none" && options.Compression != "zstd" {
		return mismatch("", "compression is none or zstd, not %q", options.Compression)
	}
	made := &plan{episode: episode, flags: map[string]*ChannelData{}}
	tensors, err := made.tensors()
	if err != nil {
		return err
	}
	data, err := encodeShard(tensors, options)
	if err != nil {
		return err
	}
	if _, err := Open(bytes.NewReader(data), int64(len(data)), nil); err != nil {
		return mismatch("", "would be refused by every reader: %v", err)
	}
	_, err = out.Write(data)
	return err
}

// Data is everything of an open episode, read into memory, as something to write.
func (e *Episode) Data() (*EpisodeData, error) {
	found := &EpisodeData{ID: e.ID, EnvID: e.EnvID, Length: e.Length, Timebase: e.Timebase, Metadata: e.Metadata,
		Models: e.Models, About: e.About, Chunk: e.Chunk, AsStored: true}
	if e.Clock != nil {
		times, err := e.TimesNs()
		if err != nil {
			return nil, err
		}
		found.TimesNs = times
	}
	for _, channel := range e.Channels {
		data, err := channel.All()
		if err != nil {
			return nil, err
		}
		times, err := channel.OwnTimesNs()
		if err != nil {
			return nil, err
		}
		each := ChannelData{Name: channel.Name, DType: channel.DType(), Shape: channel.Shape(), Data: data,
			TimesNs: times, HasClock: channel.Clock != nil, About: channel.About}
		if DTypes[each.DType] == 0 {
			end := int64(0)
			for row := int64(0); row < channel.Length(); row++ {
				part, err := channel.Bytes(row, row+1)
				if err != nil {
					return nil, err
				}
				end += int64(len(part))
				each.Ends = append(each.Ends, end)
			}
		}
		found.Channels = append(found.Channels, each)
	}
	for _, name := range e.Blocks {
		data, err := e.Shard.Read(name)
		if err != nil {
			return nil, err
		}
		found.Blocks = append(found.Blocks, NamedBlock{name, data})
	}
	return found, nil
}

var flagNames = []string{rewardBlock, doneBlock, truncBlock}

// plan is one episode on its way into blocks.
type plan struct {
	episode     *EpisodeData
	flags       map[string]*ChannelData
	rows, lanes []*ChannelData
}

func (p *plan) sort() error {
	if taken := takenKey(p.episode.About, episodeKeys); taken != "" {
		return mismatch("", "about has the key %q, which the episode says itself", taken)
	}
	for i := range p.episode.Channels {
		channel := &p.episode.Channels[i]
		lane, id, _ := strings.Cut(channel.Name, "/")
		switch {
		case exactBlocks[channel.Name] != "":
			p.flags[channel.Name] = channel
			continue
		case lane == "signal" || lane == "action":
			p.rows = append(p.rows, channel)
			if taken := takenKey(channel.About, channelKeys); taken != "" {
				return mismatch(channel.Name, "about has the key %q, which the channel says itself", taken)
			}
		case lane == "omen" || lane == "uncert" || lane == "residual":
			p.lanes = append(p.lanes, channel)
			if channel.HasClock || channel.TimesNs != nil {
				return mismatch(channel.Name, "only observations and actions have clocks of their own")
			}
		default:
			return mismatch(channel.Name, "is in no lane: use signal/, action/, omen/, uncert/, residual/, reward, done or truncated")
		}
		if !isChannelID(id) {
			return mismatch(channel.Name, "is no channel id: use names joined by '/', without control characters")
		}
	}
	return nil
}

func takenKey(said Object, taken map[string]bool) string {
	for _, key := range sortedKeys(said) {
		if taken[key] {
			return key
		}
	}
	return ""
}

func isChannelID(id string) bool {
	for _, part := range strings.Split(id, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return strings.IndexFunc(id, unicode.IsControl) < 0
}

func (p *plan) tensors() ([]*tensor, error) {
	if err := p.sort(); err != nil {
		return nil, err
	}
	timebase, err := p.timebase()
	if err != nil {
		return nil, err
	}
	listed := []any{}
	for _, channel := range p.rows {
		listed = append(listed, listedAs(channel))
	}
	var out []*tensor
	meta := []struct {
		name  string
		value Object
	}{{metaWShard, p.metaWShard(timebase)}, {metaEpisode, p.metaEpisode(timebase)},
		{metaChannels, Object{"channels": listed, "modality_groups": Object{}}}}
	if len(p.episode.Models) > 0 {
		meta = append(meta, struct {
			name  string
			value Object
		}{metaModels, Object{"models": p.episode.Models}})
	}
	for _, each := range meta {
		raw, err := dumpJSON(each.value)
		if err != nil {
			return nil, about(each.name, err)
		}
		out = append(out, &tensor{name: each.name, raw: raw, rowBytes: 1, contentType: contentJSON, isPlain: true})
	}
	add := func(made []*tensor, err error) error {
		out = append(out, made...)
		return err
	}
	for _, channel := range p.rows {
		if err := add(p.tensor(channel)); err != nil {
			return nil, err
		}
	}
	for _, name := range flagNames {
		if err := add(p.flag(name)); err != nil {
			return nil, err
		}
	}
	if err := add(p.time()); err != nil {
		return nil, err
	}
	for _, channel := range p.rows {
		if channel.HasClock || channel.TimesNs != nil {
			if err := add(p.times("time/"+channel.Name+"/timestamps_ns", channel.TimesNs)); err != nil {
				return nil, err
			}
		}
	}
	for _, channel := range append(append([]*ChannelData{}, p.rows...), p.lanes...) {
		if DTypes[channel.DType] == 0 {
			out = append(out, &tensor{name: endsPrefix + channel.Name, raw: int64Bytes(channel.Ends), rowBytes: 8})
		}
	}
	for _, channel := range p.lanes {
		if err := add(p.tensor(channel)); err != nil {
			return nil, err
		}
	}
	for _, block := range p.episode.Blocks {
		content := uint16(contentRaw)
		if strings.HasPrefix(block.Name, "meta/") {
			content = contentJSON
		} else if strings.HasPrefix(block.Name, "video/") {
			content = contentVideo
		}
		out = append(out, &tensor{name: block.Name, raw: block.Data, rowBytes: 1, contentType: content, isPlain: true})
	}
	return out, nil
}

func (p *plan) timebase() (Object, error) {
	stated := p.episode.Timebase
	if stated.Type == "" {
		stated.Type = "ticks"
		if p.episode.TimesNs != nil {
			stated.Type = "timestamps_ns"
		}
	}
	if stated.TickHz == 0 {
		stated.TickHz = defaultHz
	}
	if stated.Type == "timestamps_ns" && p.episode.TimesNs == nil {
		return nil, mismatch("", "the timebase needs TimesNs")
	}
	if !(stated.TickHz >= minHz && stated.TickHz <= math.MaxFloat64) {
		return nil, mismatch("", "TickHz must be a positive number, not %v", stated.TickHz)
	}
	return Object{"type": stated.Type, "tick_hz": stated.TickHz, "dt_ns": int64(math.RoundToEven(1e9 / stated.TickHz))}, nil
}

func (p *plan) metaWShard(timebase Object) Object {
	exact, lanes, absent := Object{}, []any{}, []any{}
	for name, flag := range p.flags {
		if name == rewardBlock && flag.DType == "f32" && len(flag.About) == 0 {
			continue
		}
		said := Object{"dtype": flag.DType}
		if len(flag.About) > 0 {
			said["about"] = flag.About
		}
		exact[name] = said
	}
	for _, name := range []string{rewardBlock, doneBlock} {
		if p.flags[name] == nil {
			absent = append(absent, name)
		}
	}
	for _, channel := range p.lanes {
		said := typeOf(channel)
		said["block"] = channel.Name
		if len(channel.About) > 0 {
			said["about"] = channel.About
		}
		lanes = append(lanes, said)
	}
	return Object{"format": "W-SHARD", "version": 1, "writer": "wshard-go", "residual_edges": "pad",
		"timebase": timebase, "lanes": lanes, "exact": exact, "absent": absent}
}

func (p *plan) metaEpisode(timebase Object) Object {
	meta := Object{"episode_id": p.episode.ID, "env_id": p.episode.EnvID, "length_T": p.episode.Length,
		"timebase": timebase}
	for key, value := range p.episode.About {
		meta[key] = value
	}
	if chunk := p.episode.Chunk; chunk != nil {
		meta["chunk_index"] = chunk.Index
		if chunk.Total != nil {
			meta["total_chunks"] = *chunk.Total
		}
		if chunk.Steps != nil {
			// Chunk files have always stored the last step of the range, not the one after it.
			meta["timestep_range"] = []int64{chunk.Steps[0], chunk.Steps[1] - 1}
		}
	}
	if len(p.episode.Metadata) > 0 {
		meta["metadata"] = p.episode.Metadata
	}
	return meta
}

func contentOf(dtype string) uint16 {
	if dtype == "json" {
		return contentJSON
	}
	return contentText
}

func typeOf(channel *ChannelData) Object {
	if DTypes[channel.DType] == 0 {
		return Object{"dtype": "u8", "shape": []int64{}, "encoding": channel.DType, "ends": endsPrefix + channel.Name}
	}
	return Object{"dtype": channel.DType, "shape": append([]int64{}, channel.Shape...)}
}

func listedAs(channel *ChannelData) Object {
	said := Object{}
	for key, value := range channel.About {
		said[key] = value
	}
	for key, value := range typeOf(channel) {
		said[key] = value
	}
	_, said["id"], _ = strings.Cut(channel.Name, "/")
	said["signal_block"] = channel.Name
	if channel.HasClock || channel.TimesNs != nil {
		said["clock"] = "time/" + channel.Name + "/timestamps_ns"
	}
	if DTypes[channel.DType] == 0 {
		said["content_type_code"] = contentOf(channel.DType)
	}
	return said
}

func (p *plan) tensor(channel *ChannelData) ([]*tensor, error) {
	rows := p.episode.Length
	if channel.HasClock || channel.TimesNs != nil {
		rows = int64(len(channel.TimesNs))
	}
	isResidual := strings.HasPrefix(channel.Name, "residual/")
	if channel.DType == "text" || channel.DType == "json" {
		if int64(len(channel.Ends)) != rows && !isResidual {
			return nil, mismatch(channel.Name, "has %d values where %d were expected", len(channel.Ends), rows)
		}
		return []*tensor{{name: channel.Name, raw: channel.Data, rowBytes: 1, contentType: contentOf(channel.DType)}}, nil
	}
	if DTypes[channel.DType] == 0 {
		return nil, mismatch(channel.Name, "has the unknown dtype %q", channel.DType)
	}
	row := TensorSpec{channel.DType, channel.Shape}.rowBytes()
	if !isResidual && int64(len(channel.Data)) != rows*row {
		return nil, mismatch(channel.Name, "has %d bytes, %d rows of %d were expected", len(channel.Data), rows, row)
	}
	return []*tensor{{name: channel.Name, raw: channel.Data, rowBytes: row}}, nil
}

// flag is rewards or flags in the dtypes existing readers take them for; what that would change is kept beside them.
func (p *plan) flag(name string) ([]*tensor, error) {
	channel, size := p.flags[name], int64(1)
	if name == rewardBlock {
		size = 4
	}
	if channel == nil {
		if name == truncBlock {
			return nil, nil
		}
		return []*tensor{{name: name, raw: make([]byte, size*p.episode.Length), rowBytes: size}}, nil
	}
	if DTypes[channel.DType] == 0 || channel.TimesNs != nil || channel.HasClock || len(channel.Shape) > 0 {
		return nil, mismatch(name, "holds one number per step, without a clock of its own")
	}
	exact, err := p.tensor(channel)
	if err != nil {
		return nil, err
	}
	values, err := Float64s(channel.DType, channel.Data)
	if err != nil {
		return nil, err
	}
	plain := make([]byte, 0, size*p.episode.Length)
	for _, value := range values {
		if name == rewardBlock {
			plain = little.AppendUint32(plain, math.Float32bits(float32(value)))
		} else if value != 0 && value != 1 && !p.episode.AsStored {
			return nil, mismatch(name, "holds values other than 0 and 1")
		} else if value != 0 {
			plain = append(plain, 1)
		} else {
			plain = append(plain, 0)
		}
	}
	if fitsOwnBlock(name, channel.DType) {
		return exact, nil
	}
	exact[0].name = exactBlocks[name]
	return append([]*tensor{{name: name, raw: plain, rowBytes: size}}, exact...), nil
}

func (p *plan) time() ([]*tensor, error) {
	if p.episode.TimesNs != nil {
		if int64(len(p.episode.TimesNs)) != p.episode.Length {
			return nil, mismatch(stampsBlock, "has %d times for %d steps", len(p.episode.TimesNs), p.episode.Length)
		}
		return p.times(stampsBlock, p.episode.TimesNs)
	}
	raw := make([]byte, 0, 4*p.episode.Length)
	for step := int64(0); step < p.episode.Length; step++ {
		raw = little.AppendUint32(raw, uint32(step))
	}
	return []*tensor{{name: ticksBlock, raw: raw, rowBytes: 4}}, nil
}

func (p *plan) times(name string, times []int64) ([]*tensor, error) {
	for i := 1; i < len(times); i++ {
		if times[i] <= times[i-1] && !p.episode.AsStored {
			return nil, mismatch(name, "%d at step %d is not later than %d before it", times[i], i, times[i-1])
		}
	}
	return []*tensor{{name: name, raw: int64Bytes(times), rowBytes: 8}}, nil
}

func alignUp(at int64) int64 { return (at + alignment - 1) / alignment * alignment }

func encodeShard(tensors []*tensor, options WriteOptions) ([]byte, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer encoder.Close()
	var pieces []*tensor
	for _, each := range tensors {
		each.stored, each.flags = each.raw, flagsRaw
		if options.Compression == "zstd" && !each.isPlain && len(each.raw) >= minCompressedBytes {
			packed := encoder.EncodeAll(each.raw, nil)
			isWithinLimits := len(each.raw) <= max(maxExpandedBytes, len(packed)*maxLargeRatio)
			if len(packed) < len(each.raw) && isWithinLimits {
				each.stored, each.flags = packed, flagsZstd
			}
		}
		if each.flags == flagsRaw && !each.isPlain && len(each.raw) > piecesFromBytes {
			pieces = append(pieces, piecesTensor(each))
		}
	}
	tensors = append(tensors, pieces...)
	namesAt := int64(headerBytes + entryBytes*len(tensors))
	dataAt := namesAt
	for _, each := range tensors {
		if _, err := checkedName([]byte(each.name)); err != nil {
			return nil, mismatch(each.name, "is no name of a block: %v", err)
		}
		dataAt += int64(len(each.name))
	}
	dataAt = alignUp(dataAt)
	end := dataAt
	for _, each := range tensors {
		end = alignUp(end) + int64(len(each.stored))
	}
	out := make([]byte, end)
	copy(out, magic)
	out[4], out[5], out[8] = version, RoleEpisode, alignment
	little.PutUint16(out[6:], headerFlags)
	little.PutUint16(out[10:], entryBytes)
	little.PutUint32(out[12:], uint32(len(tensors)))
	little.PutUint64(out[16:], uint64(namesAt))
	little.PutUint64(out[24:], uint64(dataAt))
	little.PutUint64(out[40:], uint64(end))
	nameAt, position := int64(0), dataAt
	for i, each := range tensors {
		position = alignUp(position)
		entry := out[headerBytes+entryBytes*i:]
		little.PutUint64(entry, xxh64([]byte(each.name)))
		little.PutUint32(entry[8:], uint32(nameAt))
		little.PutUint16(entry[12:], uint16(len(each.name)))
		little.PutUint16(entry[14:], each.flags)
		little.PutUint64(entry[16:], uint64(position))
		little.PutUint64(entry[24:], uint64(len(each.stored)))
		little.PutUint64(entry[32:], uint64(len(each.raw)))
		little.PutUint32(entry[40:], crc32c(each.raw, 0))
		little.PutUint16(entry[44:], each.contentType)
		copy(out[namesAt+nameAt:], each.name)
		copy(out[position:], each.stored)
		nameAt += int64(len(each.name))
		position += int64(len(each.stored))
	}
	copy(out[markedHeaderBytes:], mark)
	little.PutUint32(out[52:], tableCRC32C(out[:dataAt]))
	return out, nil
}

// piecesTensor is one checksum per piece of a large raw block, so that a window can be verified alone.
func piecesTensor(of *tensor) *tensor {
	rows := max(1, pieceBytes/of.rowBytes)
	raw := little.AppendUint32(nil, uint32(rows))
	for at, size := int64(0), rows*of.rowBytes; at < int64(len(of.raw)); at += size {
		raw = little.AppendUint32(raw, crc32c(of.raw[at:min(at+size, int64(len(of.raw)))], 0))
	}
	return &tensor{name: piecesPrefix + of.name, raw: raw, stored: raw, rowBytes: 4}
}
