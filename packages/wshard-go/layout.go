package wshard

// Every number of the container and every name of the episode convention; SPEC.md of warpdata explains them.
const (
	magic             = "SHRD"
	version           = 2
	headerBytes       = 64
	entryBytes        = 48
	RoleChunkList     = 4
	RoleEpisode       = 5
	headerFlags       = 0x00A2
	alignment         = 64
	mark              = "WDC1"
	markedHeaderBytes = 48

	flagsRaw      = 0x0000
	flagsDefault  = 0x0001
	flagsZstd     = 0x0003
	flagsLz4      = 0x0005
	flagsSeekable = 0x000B

	contentRaw   = 0
	contentJSON  = 2
	contentText  = 5
	contentVideo = 8

	maxEntries          = 10_000_000
	maxStringTableBytes = 100_000_000
	maxNameBytes        = 4096
	maxBlockBytes       = 64 << 30
	// A compressed block of more than maxExpandedBytes may expand by at most maxLargeRatio.
	maxExpandedBytes    = 1 << 30
	maxLargeRatio       = 256
	piecesFromBytes     = 1 << 20
	pieceBytes          = 256 << 10
	frameBytes          = 64 << 10
	minCompressedBytes  = 64

	skippableMagic = 0x184D2A5E
	seekTableMagic = 0x8F92EAB1
	maxFrames      = 1 << 27

	metaWShard    = "meta/wshard"
	metaEpisode   = "meta/episode"
	metaChannels  = "meta/channels"
	metaModels    = "meta/models"
	metaChunkList = "meta/manifest"
	metaDirectory = "meta/directory"
	rewardBlock   = "reward"
	doneBlock     = "done"
	truncBlock    = "truncated"
	ticksBlock    = "time/ticks"
	stampsBlock   = "time/timestamps_ns"
	piecesPrefix  = "aux/crc32c/"
	seekPrefix    = "aux/seek/"
	endsPrefix    = "aux/ends/"
)

// exactBlocks is where rewards and flags are kept exactly if their own block, whose dtype is fixed, cannot hold them.
var exactBlocks = map[string]string{rewardBlock: "aux/reward", doneBlock: "aux/done", truncBlock: "aux/truncated"}

var alignments = map[uint8]bool{0: true, 16: true, 32: true, 64: true}

// DTypes are the thirteen element types and their sizes in bytes.
var DTypes = map[string]int64{
	"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
	"u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}
