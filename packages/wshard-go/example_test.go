package wshard_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	wshard "github.com/warpdata/wshard-go"
)

func Example() {
	data := &wshard.EpisodeData{ID: "ep_1", Length: 3, Channels: []wshard.ChannelData{
		{Name: "signal/joint", DType: "f32", Shape: []int64{2}, Data: make([]byte, 24)},
	}}
	var file bytes.Buffer
	if err := wshard.Write(&file, data, wshard.WriteOptions{Compression: "zstd"}); err != nil {
		log.Fatal(err)
	}

	episode, err := wshard.Open(bytes.NewReader(file.Bytes()), int64(file.Len()), nil) // metadata only
	if err != nil {
		log.Fatal(err)
	}
	joint := episode.Channel("joint")
	rows, err := joint.Float64s(1, 3) // rows 1 and 2, reading and verifying no more than holds them
	fmt.Println(joint.Part.Role, joint.DType(), joint.Shape(), joint.Length(), len(rows), err)
	// Output: observation f32 [2] 3 4 <nil>
}

// The example of the README is the one above, which runs.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	block, _, _ := strings.Cut(rest, "```")
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		if !strings.Contains(string(source), line) {
			t.Errorf("the README says %q", line)
		}
	}
}
