package wshard

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
)

const firstValues = 8

// Describe is everything the file of an episode says and holds, as wshard-dump prints it; every checksum is verified.
// open is called for the episode, and where isFull asks for metadata, first values and a window of each channel again,
// so that the window is read by a reader that has seen nothing else of the file.
func Describe(open func() (*Episode, error), isFull bool) (Object, error) {
	episode, err := open()
	if err != nil {
		return nil, err
	}
	fresh := episode
	if isFull {
		if fresh, err = open(); err != nil {
			return nil, err
		}
	}
	kind := "episode"
	if episode.Recording != nil {
		kind = "packed"
	}
	if episode.Chunks != nil {
		kind = "chunks"
		for index := range episode.Chunks.Chunks {
			if err := episode.Chunks.Check(index); err != nil {
				return nil, err
			}
		}
	}
	channels := []any{}
	for _, channel := range episode.Channels {
		said, err := describeChannel(channel, fresh, isFull)
		if err != nil {
			return nil, err
		}
		channels = append(channels, said)
	}
	found := Object{"kind": kind, "id": episode.ID, "env_id": episode.EnvID, "length": episode.Length,
		"channels": channels}
	if recording := episode.Recording; recording != nil {
		signals := []any{}
		for _, signal := range recording.Signals {
			said, err := describeSignal(signal)
			if err != nil {
				return nil, err
			}
			signals = append(signals, said)
		}
		found["signals"] = signals
		if isFull {
			found["static"], found["meta"], found["steps"] = recording.Static, recording.Meta, nil
			if recording.StepClock != "" {
				found["steps"] = Object{"clock": recording.StepClock, "outcome": recording.StepOutcome}
			}
		}
	}
	if !isFull {
		return found, nil
	}
	return found, describeRest(found, episode)
}

func describeRest(found Object, episode *Episode) error {
	times, err := episode.TimesNs()
	if err != nil {
		return err
	}
	blocks := []any{}
	for _, name := range episode.Blocks {
		data, err := episode.Shard.Read(name)
		if err != nil {
			return err
		}
		blocks = append(blocks, Object{"name": name, "sha256": hashOf(data)})
	}
	models := episode.Models
	if models == nil {
		models = []any{}
	}
	found["timebase"] = Object{"type": episode.Timebase.Type, "tick_hz": episode.Timebase.TickHz}
	found["times"] = hashOf(int64Bytes(times))
	found["metadata"], found["models"], found["about"] = episode.Metadata, models, episode.About
	found["chunk"], found["blocks"] = nil, blocks
	if chunk := episode.Chunk; chunk != nil {
		found["chunk"] = Object{"index": chunk.Index, "total": chunk.Total, "steps": chunk.Steps}
	}
	return nil
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func int64Bytes(values []int64) []byte {
	out := make([]byte, 0, 8*len(values))
	for _, each := range values {
		out = little.AppendUint64(out, uint64(each))
	}
	return out
}

func orNull(word string) any {
	if word == "" {
		return nil
	}
	return word
}

func describeChannel(channel *Channel, fresh *Episode, isFull bool) (Object, error) {
	length := channel.Length()
	found := Object{"name": channel.Name, "id": channel.ID, "lane": channel.Lane, "role": channel.Part.Role,
		"of": orNull(channel.Part.Of), "model": orNull(channel.Part.Model), "dtype": channel.DType(),
		"shape": append([]int64{length}, channel.Shape()...), "clock": nil}
	if isFull {
		start := length / 3
		end := min(length, start+(length+2)/3)
		data, err := fresh.Channel(channel.Name).Bytes(start, end)
		if err != nil {
			return nil, err
		}
		found["window"] = Object{"start": start, "end": end, "sha256": hashOf(data)}
		found["about"] = channel.About
	}
	data, err := channel.All()
	if err != nil {
		return nil, err
	}
	found["sha256"] = hashOf(data)
	first, err := firstOf(channel, data)
	if err != nil {
		return nil, err
	}
	if isFull {
		found["first"] = first
	}
	if channel.Clock != nil {
		times, err := channel.OwnTimesNs()
		if err != nil {
			return nil, err
		}
		found["clock"] = Object{"length": len(times), "sha256": hashOf(int64Bytes(times))}
	}
	return found, nil
}

func firstOf(channel *Channel, data []byte) ([]any, error) {
	if DTypes[channel.DType()] == 0 {
		values, err := channel.Texts(0, channel.Length())
		return values[:min(firstValues, len(values))], err
	}
	data = data[:min(int64(len(data)), firstValues*DTypes[channel.DType()])]
	out := []any{}
	switch channel.DType() {
	case "i64":
		for _, each := range Int64s(data) {
			out = append(out, each)
		}
	case "u64":
		for _, each := range Int64s(data) {
			out = append(out, uint64(each))
		}
	default:
		values, err := Float64s(channel.DType(), data)
		if err != nil {
			return nil, err
		}
		for _, each := range values {
			switch {
			case math.IsNaN(each):
				out = append(out, "NaN")
			case math.IsInf(each, 0):
				out = append(out, map[bool]string{true: "Infinity", false: "-Infinity"}[each > 0])
			default:
				out = append(out, each)
			}
		}
	}
	return out, nil
}

func describeSignal(signal *Signal) (Object, error) {
	found := Object{"name": signal.Name, "kind": signal.Kind, "dtype": signal.DType, "role": signal.Part.Role,
		"of": orNull(signal.Part.Of), "model": orNull(signal.Part.Model)}
	if !signal.IsRows() {
		data, err := signal.File()
		if err != nil {
			return nil, err
		}
		if signal.Table != "" {
			found["table"] = hashOf(data)
			return found, nil
		}
		frames, err := signal.FrameIndex()
		found["video"], found["frames"] = hashOf(data), hashOf(frames)
		return found, err
	}
	data, err := signal.Bytes(0, signal.Length)
	if err != nil {
		return nil, err
	}
	offsets, err := signal.Offsets()
	if err != nil {
		return nil, err
	}
	if offsets != nil {
		found["offsets"] = hashOf(int64Bytes(offsets))
	}
	times, err := signal.TimesNs()
	found["shape"] = append([]int64{signal.Length}, signal.Shape...)
	found["sha256"], found["times"] = hashOf(data), hashOf(int64Bytes(times))
	return found, err
}

// DumpText is a description as JSON text, on one line or indented.
func DumpText(value any, isIndented bool) ([]byte, error) {
	text, err := dumpJSON(value)
	if err != nil || !isIndented {
		return text, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, text, "", "  ")
	return out.Bytes(), err
}
