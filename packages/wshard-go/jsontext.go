package wshard

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
	"unicode/utf8"
)

const (
	maxJSONBytes = 64 << 20
	maxJSONDepth = 500
)

// Object is a JSON object; numbers in it are json.Number, so that none is rounded.
type Object = map[string]any

// parseJSON reads one JSON text strictly: a key twice, NaN, absurd nesting and anything not UTF-8 are errors.
func parseJSON(data []byte) (any, error) {
	if len(data) > maxJSONBytes {
		return nil, fail(LimitExceeded, "", "JSON of %d bytes is too large", len(data))
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, corrupt("", "not valid JSON")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return parseValue(decoder, 0)
}

func parseValue(decoder *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, corrupt("", "not valid JSON (nested too deep)")
	}
	token, err := decoder.Token()
	if err != nil {
		return nil, corrupt("", "not valid JSON (%v)", err)
	}
	switch token {
	case json.Delim('['):
		out := []any{}
		for decoder.More() {
			value, err := parseValue(decoder, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		_, err = decoder.Token()
		return out, err
	case json.Delim('{'):
		out := Object{}
		for decoder.More() {
			key, err := decoder.Token()
			if err != nil {
				return nil, corrupt("", "not valid JSON (%v)", err)
			}
			if _, isTwice := out[key.(string)]; isTwice {
				return nil, corrupt("", "not valid JSON (a key appears twice)")
			}
			value, err := parseValue(decoder, depth+1)
			if err != nil {
				return nil, err
			}
			out[key.(string)] = value
		}
		_, err = decoder.Token()
		return out, err
	}
	return token, nil
}

func parseJSONObject(data []byte) (Object, error) {
	value, err := parseJSON(data)
	if err != nil {
		return nil, err
	}
	found, isObject := value.(Object)
	if !isObject {
		return nil, corrupt("", "JSON is no object, one was expected")
	}
	return found, nil
}

// keysOf lists the keys of an object inside a valid JSON object as the text has them, which a map forgets.
func keysOf(data []byte, member string) []string {
	var outer map[string]json.RawMessage
	keys := []string{}
	if json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &outer) != nil {
		return keys
	}
	decoder := json.NewDecoder(bytes.NewReader(outer[member]))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return keys
	}
	for decoder.More() {
		key, err := decoder.Token()
		var value json.RawMessage
		if err != nil || decoder.Decode(&value) != nil {
			break
		}
		keys = append(keys, key.(string))
	}
	return keys
}

// dumpJSON is compact JSON with text as it is.
func dumpJSON(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fail(SchemaMismatch, "", "metadata is not JSON: %v", err)
	}
	return []byte(strings.TrimSuffix(out.String(), "\n")), nil
}

func sortedKeys(source Object) []string {
	keys := make([]string, 0, len(source))
	for key := range source {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
