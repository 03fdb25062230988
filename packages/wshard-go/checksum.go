package wshard

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc32c(data []byte, before uint32) uint32 { return crc32.Update(before, castagnoli, data) }

const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

func xxhRound(lane, input uint64) uint64 {
	return bits.RotateLeft64(lane+input*prime2, 31) * prime1
}

// xxh64 is XXH64 with seed 0.
func xxh64(data []byte) uint64 {
	size := uint64(len(data))
	var hash uint64
	if len(data) >= 32 {
		var p1 = prime1
		lanes := [4]uint64{p1 + prime2, prime2, 0, -p1}
		for ; len(data) >= 32; data = data[32:] {
			for i := range lanes {
				lanes[i] = xxhRound(lanes[i], binary.LittleEndian.Uint64(data[8*i:]))
			}
		}
		for i, turn := range [4]int{1, 7, 12, 18} {
			hash += bits.RotateLeft64(lanes[i], turn)
		}
		for _, lane := range lanes {
			hash = (hash^xxhRound(0, lane))*prime1 + prime4
		}
	} else {
		hash = prime5
	}
	hash += size
	for ; len(data) >= 8; data = data[8:] {
		hash = bits.RotateLeft64(hash^xxhRound(0, binary.LittleEndian.Uint64(data)), 27)*prime1 + prime4
	}
	if len(data) >= 4 {
		hash = bits.RotateLeft64(hash^uint64(binary.LittleEndian.Uint32(data))*prime1, 23)*prime2 + prime3
		data = data[4:]
	}
	for _, each := range data {
		hash = bits.RotateLeft64(hash^uint64(each)*prime5, 11) * prime1
	}
	hash = (hash ^ hash>>33) * prime2
	hash = (hash ^ hash>>29) * prime3
	return hash ^ hash>>32
}

// fnv1a64 is what one existing writer uses for the hashes of names.
func fnv1a64(data []byte) uint64 {
	hash := uint64(0xCBF29CE484222325)
	for _, each := range data {
		hash = (hash ^ uint64(each)) * 0x100000001B3
	}
	return hash
}
