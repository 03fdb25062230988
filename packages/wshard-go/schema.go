package wshard

import (
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strings"
)

// TensorSpec is the element type and the shape of one row, without the time axis.
type TensorSpec struct {
	DType string
	Shape []int64
}

func (t TensorSpec) rowBytes() int64 {
	size := DTypes[t.DType]
	for _, side := range t.Shape {
		size *= side
	}
	return size
}

type textSpec struct{ encoding, ends string }

// Timebase is how steps relate to time: a fixed rate ("ticks"), or a timestamp per step ("timestamps_ns").
type Timebase struct {
	Type   string
	TickHz float64
}

type channelSpec struct {
	id, lane, block string
	tensor          TensorSpec
	clock           string
	about           Object
}

// ChunkPosition is which chunk of an episode a shard is; Steps is half-open. Total and Steps may be unknown.
type ChunkPosition struct {
	Index int64
	Total *int64
	Steps *[2]int64
}

type schema struct {
	id, envID  string
	length     int64
	timebase   Timebase
	channels   []channelSpec
	lanes      map[string]TensorSpec
	texts      map[string]textSpec
	flags      map[string]string
	blockAbout map[string]Object
	absent     map[string]bool
	metadata   Object
	models     []any
	chunk      *ChunkPosition
	about      Object
}

const (
	maxRank      = 16
	maxRowBytes  = 1 << 40
	maxCount     = 1 << 48
	minHz        = 1e-9
	defaultHz    = 30.0
	signBits     = "sign2nddiff"
)

var channelKeys = setOf("id", "dtype", "shape", "signal_block", "clock", "content_type_code", "ends")
var episodeKeys = setOf("episode_id", "id", "env_id", "length_T", "length_t", "timebase", "chunk_index",
	"total_chunks", "timestep_range", "metadata")

func setOf(names ...string) map[string]bool {
	found := map[string]bool{}
	for _, name := range names {
		found[name] = true
	}
	return found
}

// wrong is what the parsers below throw; readSchema catches it and says it about the block.
type wrong struct{ fact string }

func refuse(format string, args ...any) { panic(wrong{fmt.Sprintf(format, args...)}) }

func catch(block string, work func()) (err error) {
	defer func() {
		switch found := recover().(type) {
		case nil:
		case wrong:
			err = corrupt(block, "%s", found.fact)
		default:
			panic(found)
		}
	}()
	work()
	return nil
}

func tensorSpec(dtype string, shape ...int64) TensorSpec {
	if DTypes[dtype] == 0 {
		refuse("unknown dtype %q", dtype)
	}
	return TensorSpec{dtype, shape}
}

func readSchema(shard *Shard) (*schema, error) {
	found := &schema{lanes: map[string]TensorSpec{}, texts: map[string]textSpec{}, flags: map[string]string{},
		blockAbout: map[string]Object{}, absent: map[string]bool{}, metadata: Object{}, about: Object{}}
	var timebase any
	stated := map[string]textSpec{}
	read := func(name string, isRequired bool, parse func(Object)) error {
		if !shard.Has(name) {
			if isRequired {
				return corrupt(name, "is missing: this is no episode")
			}
			return nil
		}
		meta, err := shard.ReadJSON(name)
		if err != nil {
			return err
		}
		return catch(name, func() { parse(meta) })
	}
	err := read(metaWShard, false, func(meta Object) {
		timebase = meta["timebase"]
		found.readStated(meta, stated)
	})
	if err == nil {
		err = read(metaEpisode, true, func(meta Object) { found.readEpisode(meta, shard, timebase) })
	}
	if err == nil {
		err = read(metaChannels, true, func(meta Object) { found.readChannels(meta, shard) })
	}
	if err == nil {
		err = read(metaModels, false, func(meta Object) { found.models = list(meta, "models") })
	}
	for block, text := range stated {
		found.texts[block] = text
	}
	return found, err
}

func (s *schema) readStated(meta Object, texts map[string]textSpec) {
	for _, value := range list(meta, "lanes") {
		each := object(value)
		block := text(each, "block")
		s.lanes[block] = tensorOf(each, block)
		addText(texts, block, each)
		if said, isSaid := each["about"]; isSaid {
			s.blockAbout[block] = object(said)
		}
	}
	for name, value := range object(meta["exact"]) {
		each := object(value)
		if exactBlocks[name] == "" {
			continue
		}
		s.flags[name] = tensorSpec(text(each, "dtype")).DType
		if said, isSaid := each["about"]; isSaid {
			s.blockAbout[name] = object(said)
		}
	}
	for _, name := range list(meta, "absent") {
		s.absent[fmt.Sprint(name)] = true
	}
}

func (s *schema) readEpisode(meta Object, shard *Shard, timebase any) {
	s.length = lengthOf(meta, shard)
	s.timebase = timebaseOf(meta["timebase"], timebase)
	s.chunk = chunkOf(meta, s.length)
	s.id, s.envID = text(meta, "episode_id", "id"), text(meta, "env_id")
	s.metadata = object(meta["metadata"])
	for key, value := range meta {
		if !episodeKeys[key] {
			s.about[key] = value
		}
	}
}

func (s *schema) readChannels(meta Object, shard *Shard) {
	var entries []Object
	if named, isMap := meta["channels"].(Object); isMap {
		names := make([]string, 0, len(named))
		for name := range named {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			each := Object{"signal_block": name}
			for key, value := range object(named[name]) {
				each[key] = value
			}
			entries = append(entries, each)
		}
	} else {
		for _, value := range list(meta, "channels") {
			entries = append(entries, object(value))
		}
	}
	named, seen := map[string]bool{}, map[string]bool{}
	for _, each := range entries {
		named[text(each, "signal_block")] = true
	}
	for _, each := range entries {
		channel := channelOf(each, shard, named)
		if seen[channel.block] {
			refuse("channel %q is listed twice", channel.block)
		}
		seen[channel.block] = true
		s.channels = append(s.channels, channel)
		addText(s.texts, channel.block, each)
	}
}

func channelOf(each Object, shard *Shard, named map[string]bool) channelSpec {
	block := text(each, "signal_block")
	_, rest, _ := strings.Cut(block, "/")
	id := text(each, "id")
	if id == "" {
		id = rest
	}
	if block == "" || (!shard.Has(block) && !named["action/"+id]) {
		if block == "" {
			block = "signal/" + id
		}
		// Two existing writers list actions as if they were signals; the block that is there decides.
		if block == "signal/"+id && !shard.Has(block) && shard.Has("action/"+id) {
			block = "action/" + id
		}
	}
	lane, rest, _ := strings.Cut(block, "/")
	if (lane != "signal" && lane != "action") || rest == "" || id == "" {
		refuse("channel %q has no signal or action block", id)
	}
	clock := ""
	if stated := each["clock"]; stated != nil {
		name, isText := stated.(string)
		if !isText || !shard.Has(name) {
			refuse("channel %q names a clock that is not there", id)
		}
		clock = name
	}
	_, isText := each["ends"]
	said := Object{}
	for key, value := range each {
		if !channelKeys[key] && !(key == "encoding" && isText) {
			said[key] = value
		}
	}
	return channelSpec{id, lane, block, tensorOf(each, id), clock, said}
}

func addText(texts map[string]textSpec, block string, each Object) {
	if _, isText := each["ends"]; !isText {
		return
	}
	encoding := text(each, "encoding")
	shape, isList := each["shape"].([]any)
	isOne := isList && len(shape) == 0 && text(each, "dtype") == "u8"
	if (encoding != "text" && encoding != "json") || !isOne {
		refuse("%q is neither text nor JSON of one value per step", block)
	}
	texts[block] = textSpec{encoding, text(each, "ends")}
}

func tensorOf(each Object, what string) TensorSpec {
	stated := list(each, "shape")
	shape := make([]int64, len(stated))
	for i, side := range stated {
		shape[i] = count(side, "shape of "+what)
	}
	if len(shape) > maxRank {
		refuse("%q has %d axes", what, len(shape))
	}
	dtype := text(each, "dtype")
	if dtype == "" {
		dtype = "f32"
	}
	spec := tensorSpec(dtype, shape...)
	size := float64(DTypes[dtype])
	for _, side := range shape {
		size *= float64(side)
	}
	if size > maxRowBytes {
		refuse("%q has rows of %g bytes", what, size)
	}
	return spec
}

func text(source Object, keys ...string) string {
	for _, key := range keys {
		if value, isThere := source[key]; isThere {
			found, isText := value.(string)
			if !isText {
				refuse("%s is not a string", key)
			}
			return found
		}
	}
	return ""
}

func count(value any, what string) int64 {
	number, isNumber := value.(json.Number)
	found, err := number.Int64()
	if !isNumber || err != nil || found < 0 || found >= maxCount {
		refuse("%s is %v, a count was expected", what, value)
	}
	return found
}

func object(value any) Object {
	if value == nil {
		return Object{}
	}
	found, isObject := value.(Object)
	if !isObject {
		refuse("metadata is not an object")
	}
	return found
}

// list is the list under a key; a key that is not there is an empty list.
func list(source Object, key string) []any {
	value, isThere := source[key]
	if !isThere {
		return []any{}
	}
	found, isList := value.([]any)
	if !isList {
		refuse("a list was expected")
	}
	return found
}

func lengthOf(episode Object, shard *Shard) int64 {
	for _, key := range []string{"length_T", "length_t"} {
		if value, isThere := episode[key]; isThere {
			return count(value, key)
		}
	}
	if !shard.Has(doneBlock) {
		refuse("the length of the episode is missing")
	}
	return shard.rawSize(doneBlock)
}

func timebaseOf(sources ...any) Timebase {
	var given []Object
	var kind any
	for _, source := range sources {
		if each, isObject := source.(Object); isObject {
			given = append(given, each)
		} else if word, isText := source.(string); isText && kind == nil {
			kind = word
		}
	}
	if kind == nil {
		kind = "ticks"
	}
	for _, each := range given {
		if stated, isThere := each["type"]; isThere {
			kind = stated
			break
		}
	}
	// Existing readers take microseconds for ticks; a rate without timestamps is all such a file has.
	if kind == "timestamps_us" {
		kind = "ticks"
	}
	if kind != "ticks" && kind != "timestamps_ns" {
		refuse("a timebase is 'ticks' or 'timestamps_ns', not %v", kind)
	}
	rate := defaultHz
	if stated, isSaid := firstSaid(given, "tick_hz"); isSaid {
		rate = number(stated, "tick_hz")
	} else if stated, isSaid := firstSaid(given, "dt_ns"); isSaid {
		rate = rateOf(number(stated, "dt_ns"))
	}
	if !(rate >= minHz && rate <= math.MaxFloat64) {
		refuse("tick_hz must be a positive number, not %v", rate)
	}
	return Timebase{kind.(string), rate}
}

// firstSaid is the first value under this key that says something: zero, nothing and empty values do not.
func firstSaid(given []Object, key string) (any, bool) {
	for _, each := range given {
		switch value := each[key].(type) {
		case nil:
		case bool:
			if value {
				return value, true
			}
		case string:
			if value != "" {
				return value, true
			}
		case json.Number:
			if found, _ := value.Float64(); found != 0 {
				return value, true
			}
		case []any:
			if len(value) > 0 {
				return value, true
			}
		case Object:
			if len(value) > 0 {
				return value, true
			}
		}
	}
	return nil, false
}

func number(value any, what string) float64 {
	stated, isNumber := value.(json.Number)
	if !isNumber {
		refuse("%s is not a number", what)
	}
	found, _ := stated.Float64()
	return found
}

// rateOf is the rate behind an interval that was cut or rounded to whole nanoseconds.
func rateOf(dtNs float64) float64 {
	rate := 1e9 / dtNs
	whole := math.RoundToEven(rate)
	if whole != 0 && (dtNs == math.Trunc(1e9/whole) || dtNs == math.RoundToEven(1e9/whole)) {
		return whole
	}
	return rate
}

func chunkOf(episode Object, length int64) *ChunkPosition {
	steps := rangeOf(episode["timestep_range"], length)
	if episode["chunk_index"] == nil {
		return nil
	}
	found := &ChunkPosition{Index: count(episode["chunk_index"], "chunk_index"), Steps: steps}
	if episode["total_chunks"] != nil {
		total := count(episode["total_chunks"], "total_chunks")
		found.Total = &total
	}
	return found
}

func rangeOf(value any, length int64) *[2]int64 {
	if value == nil {
		return nil
	}
	pair, isList := value.([]any)
	if !isList || len(pair) != 2 {
		refuse("timestep_range is not a pair")
	}
	start, end := count(pair[0], "timestep_range"), count(pair[1], "timestep_range")
	switch {
	case start == 0 && end == 0 && length == 1:
		return &[2]int64{0, 1}
	case start == 0 && end == 0:
		return nil
	case end-start+1 == length:
		return &[2]int64{start, end + 1}
	case end-start == length:
		return &[2]int64{start, end}
	}
	refuse("timestep_range [%d, %d] does not hold %d steps", start, end, length)
	return nil
}

// guessSpec is dtype and shape of a block no metadata describes, from its name and size.
func (s *schema) guessSpec(name string, rawSize int64) (TensorSpec, bool) {
	lane, rest, _ := strings.Cut(name, "/")
	ofSignal := func(isIt func(id string) bool) (TensorSpec, bool) {
		for _, each := range s.channels {
			if each.lane == "signal" && each.tensor.rowBytes()*s.length == rawSize && isIt(each.id) {
				return each.tensor, true
			}
		}
		return TensorSpec{}, false
	}
	switch {
	case lane == "action":
		// One existing writer lists a channel once and stores what was seen and what was done under its id.
		if found, isThere := ofSignal(func(id string) bool { return id == rest }); isThere {
			return found, true
		}
		return s.rowsOf("f32", rawSize)
	case lane == "residual":
		return TensorSpec{DType: "u8"}, true
	case strings.HasPrefix(name, "omen/latent_action_codebook/"):
		return s.rowsOf("i32", rawSize)
	case strings.HasPrefix(name, "omen/latent_action/"):
		return s.rowsOf("f32", rawSize)
	case lane == "omen" || lane == "uncert":
		// A prediction has the dtype and shape of the signal it predicts, if the size agrees.
		return ofSignal(func(id string) bool { return strings.HasPrefix(rest+"/", id+"/") })
	}
	return TensorSpec{}, false
}

// rowsOf cuts a flat block into rows of T; one element per row is a scalar.
func (s *schema) rowsOf(dtype string, rawSize int64) (TensorSpec, bool) {
	step := DTypes[dtype] * s.length
	if step == 0 || rawSize%step != 0 {
		return TensorSpec{}, false
	}
	if width := rawSize / step; width != 1 {
		return TensorSpec{dtype, []int64{width}}, true
	}
	return TensorSpec{DType: dtype}, true
}

// Part is what part a signal plays, about which other one, and by which model.
type Part struct{ Role, Of, Model string }

var roleOfName = map[string]string{
	"action": "action", "actions": "action", "reward": "reward", "rewards": "reward", "terminated": "terminated",
	"done": "terminated", "truncated": "truncated", "omen": "prediction", "prediction": "prediction",
	"uncert": "uncertainty", "uncertainty": "uncertainty", "residual": "residual",
}

// guessPart is the part of a signal that nobody stated, by its name.
func guessPart(name string, isEvent bool) Part {
	first, rest, _ := strings.Cut(name, "/")
	role := roleOfName[first]
	switch role {
	case "prediction", "uncertainty", "residual":
		var parts []string
		for _, part := range strings.Split(rest, "/") {
			if part != "" {
				parts = append(parts, part)
			}
		}
		return partAbout(role, parts)
	case "action":
		return Part{Role: role}
	}
	if role != "" && rest == "" {
		return Part{Role: role}
	}
	if isEvent {
		return Part{Role: "event"}
	}
	return Part{Role: "observation"}
}

func partAbout(role string, parts []string) Part {
	if role == "residual" {
		at := len(parts)
		for i, part := range parts {
			if i > 0 && (part == "error" || part == signBits) {
				at = i
				break
			}
		}
		return Part{role, strings.Join(parts[:at], "/"), strings.Join(parts[min(at+1, len(parts)):], "/")}
	}
	if role == "uncertainty" && len(parts) > 2 {
		parts = parts[:len(parts)-1]
	}
	if len(parts) < 2 {
		return Part{Role: role, Of: strings.Join(parts, "/")}
	}
	return Part{role, strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]}
}
