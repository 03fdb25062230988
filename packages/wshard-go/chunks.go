package wshard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
)

// ChunkEntry is one chunk; Steps is half-open and may be unknown.
type ChunkEntry struct {
	Index  int64
	URI    string
	SHA256 string
	Steps  *[2]int64
	Length int64
}

// ChunkList is what a chunk list says.
type ChunkList struct {
	EpisodeID, EnvID string
	// Length is the steps of all chunks.
	Length int64
	Chunks []ChunkEntry

	open func(ChunkEntry) (io.ReaderAt, int64, error)
}

const maxChunks = 1_000_000

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ReadChunkList reads a chunk list and checks that its chunks follow each other without a gap.
func ReadChunkList(shard *Shard) (*ChunkList, error) {
	if shard.Role != RoleChunkList || !shard.Has(metaChunkList) {
		return nil, corrupt("", "not a chunk list")
	}
	meta, err := shard.ReadJSON(metaChunkList)
	if err != nil {
		return nil, err
	}
	found := &ChunkList{}
	return found, catch(metaChunkList, func() { found.read(meta) })
}

func (l *ChunkList) read(meta Object) {
	stated := list(meta, "chunks")
	if len(stated) > maxChunks {
		refuse("%d chunks are too many", len(stated))
	}
	for _, value := range stated {
		each, isObject := value.(Object)
		if !isObject {
			refuse("chunks is not a list of objects")
		}
		entry := ChunkEntry{Index: count(each["chunk_index"], "chunk_index"), URI: text(each, "uri"),
			SHA256: text(each, "sha256"), Length: count(each["length_T"], "length_T")}
		if !sha256Text.MatchString(entry.SHA256) {
			refuse("%.70q is no SHA-256", entry.SHA256)
		}
		if steps := each["timestep_range"]; steps != nil {
			entry.Steps = stepsOf(steps)
		}
		checkURI(entry.URI)
		l.Chunks = append(l.Chunks, entry)
	}
	sort.SliceStable(l.Chunks, func(a, b int) bool { return l.Chunks[a].Index < l.Chunks[b].Index })
	l.EpisodeID, l.EnvID = text(meta, "episode_id"), text(meta, "env_id")
	l.Length = count(meta["total_timesteps"], "total_timesteps")
	position := int64(0)
	for index, each := range l.Chunks {
		if each.Index != int64(index) {
			refuse("chunk indices are not 0 to %d", len(l.Chunks)-1)
		}
		start, end := position, position+each.Length
		if each.Steps != nil {
			start, end = each.Steps[0], each.Steps[1]
		}
		if start != position {
			refuse("chunk %d begins at step %d, %d was expected", index, start, position)
		}
		if end-start != each.Length {
			refuse("chunk %d has %d steps, its range %d", index, each.Length, end-start)
		}
		position = end
	}
	if position != l.Length {
		refuse("the chunks hold %d steps, %d were announced", position, l.Length)
	}
}

// stepsOf: chunk lists store the last step; in memory a range ends after it.
func stepsOf(value any) *[2]int64 {
	pair, isList := value.([]any)
	if !isList || len(pair) != 2 {
		refuse("timestep_range is not a pair of steps")
	}
	var steps [2]int64
	for i, each := range pair {
		number, isNumber := each.(json.Number)
		found, err := number.Int64()
		if !isNumber || err != nil || found > maxCount || found < -maxCount {
			refuse("timestep_range is not a pair of steps")
		}
		steps[i] = found
	}
	steps[1]++
	return &steps
}

// checkURI: a chunk's address stays inside the folder of its chunk list.
func checkURI(uri string) {
	parts := strings.Split(strings.ReplaceAll(uri, `\`, "/"), "/")
	isOutside := uri == "" || strings.Contains(uri, "\x00") || strings.Contains(parts[0], ":")
	for _, part := range parts {
		isOutside = isOutside || part == "" || part == "." || part == ".."
	}
	if isOutside {
		refuse("chunk %q would lie outside the folder", uri)
	}
}

// Check holds the file of a chunk against its SHA-256; it reads all of it.
func (l *ChunkList) Check(index int) error {
	entry := l.Chunks[index]
	reader, size, err := l.open(entry)
	if err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(reader, 0, size)); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != entry.SHA256 {
		return fail(Checksum, "", "chunk %d does not match its SHA-256", index)
	}
	return nil
}

func openChunks(shard *Shard, beside Beside) (*Episode, error) {
	found, err := ReadChunkList(shard)
	if err != nil {
		return nil, err
	}
	found.open = func(entry ChunkEntry) (io.ReaderAt, int64, error) {
		if beside == nil {
			return nil, 0, &Error{NotFound, "its chunks are in other files", "", "Say where with beside."}
		}
		return beside(entry.URI)
	}
	episode := &Episode{ID: found.EpisodeID, EnvID: found.EnvID, Timebase: Timebase{"ticks", defaultHz},
		Metadata: Object{}, About: Object{}, Chunks: found, Shard: shard}
	if len(found.Chunks) == 0 {
		return episode, nil
	}
	return episode, (&joiner{list: found, opened: map[int]*Episode{}}).join(episode)
}

// joiner opens the chunks of a list as they are needed.
type joiner struct {
	list   *ChunkList
	lock   sync.Mutex
	opened map[int]*Episode
	// profile of the first chunk that was opened.
	profile string
}

func (j *joiner) chunk(index int) (*Episode, error) {
	j.lock.Lock()
	defer j.lock.Unlock()
	if found := j.opened[index]; found != nil {
		return found, nil
	}
	entry := j.list.Chunks[index]
	reader, size, err := j.list.open(entry)
	if err != nil {
		return nil, err
	}
	shard, err := OpenShard(reader, size)
	if err != nil {
		return nil, err
	}
	chunk, err := episodeOf(shard)
	if err != nil {
		return nil, err
	}
	if chunk.Length != entry.Length || (chunk.Chunk != nil && chunk.Chunk.Index != entry.Index) {
		return nil, corrupt("", "%s is not chunk %d of its list", entry.URI, entry.Index)
	}
	profile, err := profileOf(chunk)
	if err != nil {
		return nil, err
	}
	if j.profile == "" {
		j.profile = profile
	}
	if profile != j.profile {
		return nil, corrupt("", "%s does not continue the other chunks of its list", entry.URI)
	}
	j.opened[index] = chunk
	return chunk, nil
}

func (j *joiner) find(name string, index int) (*Channel, error) {
	chunk, err := j.chunk(index)
	if err != nil {
		return nil, err
	}
	for _, each := range chunk.Channels {
		if each.Name == name {
			return each, nil
		}
	}
	return nil, corrupt("", "chunk %d has no channel %q", index, name)
}

func (j *joiner) join(whole *Episode) error {
	first, err := j.chunk(0)
	if err != nil {
		return err
	}
	if whole.EnvID == "" {
		whole.EnvID = first.EnvID
	}
	whole.Length, whole.Timebase = j.list.Length, first.Timebase
	whole.Metadata, whole.Models, whole.About = first.Metadata, first.Models, first.About
	whole.Blocks, whole.Shard = first.Blocks, first.Shard
	lengths := make([]int64, len(j.list.Chunks))
	for i, each := range j.list.Chunks {
		lengths[i] = each.Length
	}
	for _, channel := range first.Channels {
		joined, err := j.channel(channel, lengths)
		if err != nil {
			return err
		}
		whole.Channels = append(whole.Channels, joined)
	}
	if first.Clock != nil {
		whole.Clock = joinRows(first.Clock.Spec(), lengths, func(index int) (RowSource, error) {
			chunk, err := j.chunk(index)
			if err != nil {
				return nil, err
			}
			return chunk.Clock, nil
		})
	}
	return nil
}

// isSignBits tells whether a residual holds packed bits: `<channel>/sign2nddiff`, or `/<model>` behind that, in single
// bytes.
func isSignBits(channel *Channel) bool {
	parts := strings.Split(channel.ID, "/")
	last := parts[max(1, len(parts)-2):]
	isByte := channel.DType() == "u8" && len(channel.Shape()) == 0
	return channel.Lane == "residual" && isByte && slices.Contains(last, signBits)
}

func (j *joiner) channel(first *Channel, lengths []int64) (*Channel, error) {
	rows := func(index int) (RowSource, error) {
		found, err := j.find(first.Name, index)
		if err != nil {
			return nil, err
		}
		return found.Rows, nil
	}
	var joined, clock RowSource
	var err error
	switch {
	case isSignBits(first):
		if joined, err = joinBits(lengths, rows); err != nil {
			return nil, err
		}
	case first.Clock != nil:
		// A channel with its own clock has as many rows per chunk as its chunk says.
		own := make([]int64, len(lengths))
		for index := range lengths {
			found, err := j.find(first.Name, index)
			if err != nil {
				return nil, err
			}
			own[index] = found.Length()
		}
		joined = joinRows(first.Rows.Spec(), own, rows)
		clock = joinRows(first.Clock.Spec(), own, func(index int) (RowSource, error) {
			found, err := j.find(first.Name, index)
			if err != nil {
				return nil, err
			}
			return found.Clock, nil
		})
	default:
		joined = joinRows(first.Rows.Spec(), lengths, rows)
	}
	return newChannel(first.Name, first.Lane, first.ID, joined, clock, first.About), nil
}
