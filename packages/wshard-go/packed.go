package wshard

import (
	"fmt"
	"strconv"
)

// Signal is one signal of a recording: rows of numbers (of varying number in each record, if it has offsets), or the
// file of a table or a camera.
type Signal struct {
	Name, Kind string
	// DType is one of the thirteen, or "text" or "bytes".
	DType string
	// Shape is that of one record; of ragged signals and sound, that of one row.
	Shape []int64
	// SampleRateHz is the number of samples in a second, of sound.
	SampleRateHz float64
	Units        string
	// Part is the role it plays.
	Part Part
	// Clock is the name that signals recorded at the same times share.
	Clock string
	// Length is the number of records of a signal of rows.
	Length int64
	// Table is the block of its parquet file, where it is a table of events.
	Table string
	// Video and Frames are the blocks of its encoded video and of its frame index, where it is a camera.
	Video, Frames string

	shard          *Shard
	blocks         []string
	times, offsets string
}

// Recording is a packed recording: the same names, signals, static items and metadata as its folder had.
type Recording struct {
	ID           string
	Static, Meta Object
	// StepClock says which clock the steps are of, StepOutcome whether rewards came with the "same" or the "next"
	// observation; both are empty where nobody said which moments are the steps.
	StepClock, StepOutcome string
	// Signals in the order of the file.
	Signals []*Signal
}

var kinds = setOf("scalar", "vector", "tensor", "image", "text", "bytes", "ragged", "sound")
var roles = setOf("observation", "action", "reward", "terminated", "truncated", "event", "prediction", "uncertainty",
	"residual", "other")

func openRecording(shard *Shard, episode *Episode) (*Recording, error) {
	stated, err := shard.ReadJSON(metaDirectory)
	if err != nil {
		return nil, err
	}
	data, err := shard.Read(metaDirectory)
	if err != nil {
		return nil, err
	}
	found := &Recording{ID: episode.ID}
	return found, catch(metaDirectory, func() { found.read(stated, keysOf(data, "signals"), shard) })
}

func (r *Recording) read(stated Object, names []string, shard *Shard) {
	if version := fmt.Sprint(stated["version"]); version != "2" {
		refuse("a recording packed in version %s", version)
	}
	if id, isText := stated["id"].(string); isText && id != "" {
		r.ID = id
	}
	var isStatic, isMeta, isSignals bool
	var signals Object
	r.Static, isStatic = stated["static"].(Object)
	r.Meta, isMeta = stated["meta"].(Object)
	signals, isSignals = stated["signals"].(Object)
	if !isStatic || !isMeta || !isSignals {
		refuse("what it says of the recording is damaged")
	}
	if steps, isObject := stated["steps"].(Object); isObject {
		clock, isText := steps["clock"].(string)
		outcome, isStated := steps["outcome"]
		if !isStated {
			outcome = "same"
		}
		if isText && (outcome == "same" || outcome == "next") {
			r.StepClock, r.StepOutcome = clock, outcome.(string)
		}
	}
	for _, name := range names {
		how, isObject := signals[name].(Object)
		if !isObject {
			refuse("what it says of the recording is damaged")
		}
		r.Signals = append(r.Signals, newSignal(shard, name, how))
	}
}

func newSignal(shard *Shard, name string, stated Object) *Signal {
	word := func(key string) string {
		if stated[key] == nil {
			return ""
		}
		return fmt.Sprint(stated[key])
	}
	s := &Signal{Name: name, Kind: word("kind"), DType: word("dtype"), Units: word("units"), Clock: word("clock"),
		shard: shard, times: word("times")}
	for _, side := range list(stated, "shape") {
		size := count(side, "shape of "+name)
		if size < 1 {
			refuse("signal %q has a side of %d", name, size)
		}
		s.Shape = append(s.Shape, size)
	}
	isObjects := s.Kind == "text" || s.Kind == "bytes"
	if !kinds[s.Kind] || !(DTypes[s.DType] > 0 || (isObjects && s.DType == s.Kind)) {
		refuse("signal %q is of kind %q, type %q", name, s.Kind, s.DType)
	}
	s.Part = guessPart(name, isObjects)
	if role := word("role"); role != "" {
		if !roles[role] {
			refuse("signal %q has the role %q", name, role)
		}
		s.Part = Part{role, word("of"), word("model")}
	}
	if s.times == "" {
		s.times = stampsBlock
	}
	switch {
	case word("video") != "" && word("frames") != "":
		s.Video, s.Frames = word("video"), word("frames")
	case word("table") != "":
		s.Table = word("table")
	default:
		if stated["count"] != nil {
			s.Length = count(stated["count"], "count of "+name)
		}
		for _, key := range []string{"block", "more"} {
			if block := word(key); block != "" {
				s.blocks = append(s.blocks, block)
			}
		}
	}
	if s.Kind == "ragged" || s.Kind == "sound" {
		if s.offsets = word("offsets"); s.offsets == "" {
			refuse("signal %q has no offsets", name)
		}
		s.SampleRateHz, _ = strconv.ParseFloat(word("sample_rate_hz"), 64)
	}
	return s
}

// IsRows says whether the signal is rows of numbers, not a table or a camera.
func (s *Signal) IsRows() bool { return s.Table == "" && s.Video == "" }

// Bytes are those of records [start, end) of a signal of rows.
func (s *Signal) Bytes(start, end int64) ([]byte, error) {
	if !s.IsRows() || DTypes[s.DType] == 0 {
		return nil, fail(SchemaMismatch, "", "signal %q is no rows of numbers", s.Name)
	}
	row := TensorSpec{s.DType, s.Shape}.rowBytes()
	counts, total := make([]int64, len(s.blocks)), int64(0)
	for i, name := range s.blocks {
		block, err := s.shard.Block(name)
		if err != nil {
			return nil, err
		}
		if block.RawSize%row != 0 {
			return nil, corrupt(name, "%d bytes are no rows of %s", block.RawSize, s.DType)
		}
		counts[i] = block.RawSize / row
		total += counts[i]
	}
	offsets, err := s.Offsets()
	if err != nil {
		return nil, err
	}
	expected := s.Length
	if offsets != nil {
		expected = offsets[s.Length]
	}
	if total != expected {
		return nil, corrupt("", "%d rows of %d of signal %q are there", total, expected, s.Name)
	}
	if start < 0 || start > end || end > s.Length {
		return nil, fail(OutOfRange, "", "records [%d, %d) of %d in signal %q", start, end, s.Length, s.Name)
	}
	if offsets != nil {
		start, end = offsets[start], offsets[end]
	}
	out, first := []byte{}, int64(0)
	for i, name := range s.blocks {
		low, high := max(start-first, 0), min(end-first, counts[i])
		if low < high {
			data, err := s.shard.ReadRange(name, low*row, high*row, row)
			if err != nil {
				return nil, err
			}
			out = append(out, data...)
		}
		first += counts[i]
	}
	return out, nil
}

// Offsets are the first row of every record of a ragged signal or of sound, and the number of rows; nil of all else.
func (s *Signal) Offsets() ([]int64, error) {
	if s.offsets == "" {
		return nil, nil
	}
	data, err := s.shard.Read(s.offsets)
	if err != nil {
		return nil, err
	}
	offsets := Int64s(data)
	isOrdered := len(data)%8 == 0 && int64(len(offsets)) == s.Length+1 && offsets[0] == 0
	for i := 1; isOrdered && i < len(offsets); i++ {
		isOrdered = offsets[i] >= offsets[i-1]
	}
	if !isOrdered {
		return nil, corrupt(s.offsets, "the offsets of %q fall, or are not one more than its records", s.Name)
	}
	return offsets, nil
}

// TimesNs are the times of all records of a signal of rows; those of tables and cameras are in their own files.
func (s *Signal) TimesNs() ([]int64, error) {
	data, err := s.shard.Read(s.times)
	if err != nil {
		return nil, err
	}
	times := Int64s(data)
	isOrdered := len(data)%8 == 0
	for i := 1; i < len(times); i++ {
		isOrdered = isOrdered && times[i] > times[i-1]
	}
	if int64(len(times)) != s.Length || !isOrdered {
		return nil, corrupt(s.times, "the times of %q are not increasing, or not as many as its records", s.Name)
	}
	return times, nil
}

// File is the parquet file of a table, or the whole encoded video of a camera, verified.
func (s *Signal) File() ([]byte, error) {
	if s.Table != "" {
		return s.shard.Read(s.Table)
	}
	return s.shard.Read(s.Video)
}

// FrameIndex is the parquet file that says where each frame of a camera lies, and when it was taken.
func (s *Signal) FrameIndex() ([]byte, error) { return s.shard.Read(s.Frames) }
