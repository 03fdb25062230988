// Package wshard reads and writes WShard episode files: shards, chunk lists and packed recordings.
//
// Nothing is handed out that was not held against its checksum. Errors are *Error with a Code that is the same in
// Python, TypeScript and Go.
package wshard

import (
	"errors"
	"fmt"
)

// Code says what kind of error it is.
type Code string

const (
	// BadMagic: not a file of this kind.
	BadMagic Code = "bad_magic"
	// UnsupportedVersion: a version this release does not know.
	UnsupportedVersion Code = "unsupported_version"
	// Truncated: the file ends before its contents do.
	Truncated Code = "truncated"
	// Checksum: a stored checksum does not match the bytes.
	Checksum Code = "checksum"
	// CorruptLayout: the structure of the file contradicts itself.
	CorruptLayout Code = "corrupt_layout"
	// LimitExceeded: a size is beyond what the format allows.
	LimitExceeded Code = "limit_exceeded"
	// NotFound: nothing is stored under this name.
	NotFound Code = "not_found"
	// OutOfRange: rows or bytes were asked for that are not there.
	OutOfRange Code = "out_of_range"
	// SchemaMismatch: what was to be written would be refused by every reader.
	SchemaMismatch Code = "schema_mismatch"
)

// Error is every error of this package that is not one of reading or writing bytes.
type Error struct {
	Code    Code
	Message string
	// Block is the block that is wrong, where it is one.
	Block string
	// Hint says what to do next.
	Hint string
}

func (e *Error) Error() string {
	if e.Block == "" {
		return e.Message
	}
	return fmt.Sprintf("block %q: %s", e.Block, e.Message)
}

// CodeOf is the code of an error of this package, or "" for any other.
func CodeOf(err error) Code {
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return ""
}

func fail(code Code, block string, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Block: block}
}

func corrupt(block string, format string, args ...any) error {
	return fail(CorruptLayout, block, format, args...)
}

// about says an error that names no block about this one.
func about(block string, err error) error {
	var found *Error
	if errors.As(err, &found) && found.Block == "" {
		said := *found
		said.Block = block
		return &said
	}
	return err
}
