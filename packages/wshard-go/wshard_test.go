package wshard

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const tests = "../../tests"

type suite struct {
	Layout map[string]any    `json:"layout"`
	Files  map[string]Object `json:"files"`
}

func readSuite(t testing.TB) suite {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tests, "conformance", "expected.json"))
	if err != nil {
		t.Skip("the shared suite is not here: ", err)
	}
	var found suite
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func described(t testing.TB, path string) Object {
	t.Helper()
	var files []io.Closer
	defer func() {
		for _, each := range files {
			each.Close()
		}
	}()
	found, err := Describe(func() (*Episode, error) {
		episode, closer, err := OpenFile(path)
		if err == nil {
			files = append(files, closer)
		}
		return episode, err
	}, true)
	if code := CodeOf(err); code != "" {
		return Object{"error": string(code)}
	}
	if err != nil {
		t.Fatal(path, err)
	}
	text, err := DumpText(found, false)
	if err != nil {
		t.Fatal(err)
	}
	var plain Object
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestSharedSuite(t *testing.T) {
	for name, want := range readSuite(t).Files {
		if got := described(t, filepath.Join(tests, filepath.FromSlash(name))); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %v\nwant %v", name, got, want)
		}
	}
}

func TestNumbersOfTheFormat(t *testing.T) {
	sizes := Object{}
	for name, size := range DTypes {
		sizes[name] = float64(size)
	}
	mine := map[string]any{"VERSION": version, "TABLE_OFFSET": headerBytes, "ENTRY_BYTES": entryBytes,
		"ROLE_CHUNK_LIST": RoleChunkList, "ROLE_EPISODE": RoleEpisode, "HEADER_FLAGS": headerFlags, "ALIGNMENT": alignment,
		"MAX_ENTRIES": maxEntries, "MAX_STRING_TABLE_BYTES": maxStringTableBytes, "MAX_NAME_BYTES": maxNameBytes,
		"MAX_BLOCK_BYTES": maxBlockBytes,
		"MAX_EXPANDED_BYTES": maxExpandedBytes, "MAX_LARGE_RATIO": maxLargeRatio, "PIECES_FROM_BYTES": piecesFromBytes, "PIECE_BYTES": pieceBytes,
		"FRAME_BYTES": frameBytes, "MIN_COMPRESSED_BYTES": minCompressedBytes, "DTYPES": sizes, "MARK": mark, "MAGIC": magic}
	for name, want := range readSuite(t).Layout {
		got := mine[name]
		if number, isInt := got.(int); isInt {
			got = float64(number)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, %v in Python", name, got, want)
		}
	}
}

func TestPublishedChecksums(t *testing.T) {
	if got := crc32c([]byte("123456789"), 0); got != 0xE3069283 {
		t.Errorf("crc32c %x", got)
	}
	for text, want := range map[string]uint64{"": 0xEF46DB3751D8E999, "a": 0xD24EC4F1A98C6E5B} {
		if got := xxh64([]byte(text)); got != want {
			t.Errorf("xxh64 of %q is %x", text, got)
		}
	}
	if got := fnv1a64([]byte("a")); got != 0xAF63DC4C8601EC8C {
		t.Errorf("fnv1a64 %x", got)
	}
	// zstd ends a frame with the low half of the XXH64 of its content: any length can be held against it.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(true))
	if err != nil {
		t.Fatal(err)
	}
	for size := 1; size < 200; size++ {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*197 + size)
		}
		framed := encoder.EncodeAll(data, nil)
		if got, want := uint32(xxh64(data)), little.Uint32(framed[len(framed)-4:]); got != want {
			t.Fatalf("xxh64 of %d bytes is %x, %x in the frame", size, got, want)
		}
	}
}

func write(t testing.TB, data *EpisodeData, options WriteOptions) *Episode {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, data, options); err != nil {
		t.Fatal(err)
	}
	episode, err := Open(bytes.NewReader(out.Bytes()), int64(out.Len()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return episode
}

func TestEveryWindowIsTheSameSlice(t *testing.T) {
	data := make([]byte, 700*3000)
	for i := range data {
		data[i] = byte(i / 999)
	}
	dice := rand.New(rand.NewSource(4))
	for _, compression := range []string{"none", "zstd"} {
		episode := write(t, &EpisodeData{ID: "e", Length: 700, Channels: []ChannelData{
			{Name: "signal/x", DType: "u8", Shape: []int64{3000}, Data: data}}}, WriteOptions{compression})
		if compression == "none" && !episode.Shard.Has(piecesPrefix+"signal/x") {
			t.Error("a large raw block has no checksums of its pieces")
		}
		for round := 0; round < 50; round++ {
			start := dice.Int63n(701)
			end := start + dice.Int63n(701-start)
			got, err := episode.Channel("x").Bytes(start, end)
			if err != nil || !bytes.Equal(got, data[start*3000:end*3000]) {
				t.Fatalf("%s rows [%d, %d): %v", compression, start, end, err)
			}
		}
		if _, err := episode.Channel("x").Bytes(0, 701); CodeOf(err) != OutOfRange {
			t.Error("rows beyond the end: ", err)
		}
	}
}

func TestWhatNoReaderWouldGiveBackIsRefused(t *testing.T) {
	x := ChannelData{Name: "signal/x", DType: "u8", Data: []byte{1, 2}}
	with := func(change func(*ChannelData)) []ChannelData {
		changed := x
		change(&changed)
		return []ChannelData{changed}
	}
	for want, channels := range map[string][]ChannelData{
		"no lane":         with(func(c *ChannelData) { c.Name = "other/x" }),
		"no channel id":   with(func(c *ChannelData) { c.Name = "signal/../x" }),
		"bytes":           with(func(c *ChannelData) { c.Data = []byte{1} }),
		"unknown dtype":   with(func(c *ChannelData) { c.DType = "f33" }),
		"says itself":     with(func(c *ChannelData) { c.About = Object{"dtype": "f32"} }),
		"not later":       with(func(c *ChannelData) { c.TimesNs = []int64{2, 2} }),
		"other than 0":    with(func(c *ChannelData) { c.Name, c.Data = "done", []byte{0, 2} }),
		"values":          with(func(c *ChannelData) { c.DType = "text" }),
		"two blocks":      {x, x},
		"not JSON":        with(func(c *ChannelData) { c.About = Object{"a": func() {}} }),
		"clocks of their": with(func(c *ChannelData) { c.Name, c.TimesNs = "omen/x/m", []int64{1, 2} }),
	} {
		err := Write(io.Discard, &EpisodeData{ID: "e", Length: 2, Channels: channels}, WriteOptions{})
		if CodeOf(err) != SchemaMismatch || !strings.Contains(err.Error(), want) {
			t.Errorf("%q was expected, not %v", want, err)
		}
	}
	late := EpisodeData{ID: "e", Length: 2, TimesNs: []int64{2, 1}, Channels: []ChannelData{x}}
	if err := Write(io.Discard, &late, WriteOptions{}); CodeOf(err) != SchemaMismatch {
		t.Error("times that go back were written as new ones: ", err)
	}
}

func TestTextsClocksAndFlagsComeBack(t *testing.T) {
	big := json.Number("1152921504606846976")
	episode := write(t, &EpisodeData{ID: "e", Length: 3, Metadata: Object{"seed": big}, Channels: []ChannelData{
		{Name: "signal/said", DType: "text", Data: []byte("aü"), Ends: []int64{1, 1, 3}},
		{Name: "action/call", DType: "json", Data: []byte(`{}nullnull`), Ends: []int64{2, 6, 10}},
		{Name: "signal/slow", DType: "u16", Data: []byte{7, 0}, TimesNs: []int64{5}, About: Object{"unit": "m"}},
		{Name: "reward", DType: "i16", Data: []byte{1, 0, 2, 0, 3, 0}},
	}}, WriteOptions{"zstd"})
	said, err := episode.Channel("said").Texts(0, 3)
	if err != nil || !reflect.DeepEqual(said, []any{"a", "", "ü"}) {
		t.Error(said, err)
	}
	call, err := episode.Channel("call").Texts(0, 2)
	if err != nil || !reflect.DeepEqual(call, []any{Object{}, nil}) {
		t.Error(call, err)
	}
	times, err := episode.Channel("slow").OwnTimesNs()
	if err != nil || !reflect.DeepEqual(times, []int64{5}) || episode.Channel("slow").About["unit"] != "m" {
		t.Error(times, err)
	}
	rewards, err := episode.Channel("reward").Float64s(0, 3)
	if err != nil || !reflect.DeepEqual(rewards, []float64{1, 2, 3}) || episode.Channel("reward").DType() != "i16" {
		t.Error(rewards, err)
	}
	if episode.Channel("done") != nil || episode.Metadata["seed"] != big {
		t.Error(episode.Channels, episode.Metadata)
	}
}

// FuzzOpen: whatever the bytes are, an episode or an error of this package, never anything else.
func FuzzOpen(f *testing.F) {
	for _, pattern := range []string{"golden/wshard/*.wshard", "conformance/files/*/*.wshard"} {
		names, _ := filepath.Glob(filepath.Join(tests, pattern))
		for _, name := range names {
			if data, err := os.ReadFile(name); err == nil && len(data) < 8<<10 {
				f.Add(data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := Describe(func() (*Episode, error) {
			return Open(bytes.NewReader(data), int64(len(data)), nil)
		}, true)
		if err != nil && CodeOf(err) == "" {
			t.Fatal(err, hex.EncodeToString(data[:min(64, len(data))]))
		}
	})
}
