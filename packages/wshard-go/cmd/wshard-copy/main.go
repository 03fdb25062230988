// wshard-copy FROM TO writes an episode again: from a shard, a chunk list or a packed recording into one shard.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	wshard "github.com/warpdata/wshard-go"
)

func main() {
	isZstd := flag.Bool("zstd", false, "compress with zstd")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: wshard-copy [--zstd] FROM TO")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	options := wshard.WriteOptions{}
	if *isZstd {
		options.Compression = "zstd"
	}
	if err := copyEpisode(flag.Arg(0), flag.Arg(1), options); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		var said *wshard.Error
		if errors.As(err, &said) && said.Hint != "" {
			fmt.Fprintln(os.Stderr, said.Hint)
		}
		os.Exit(1)
	}
}

func copyEpisode(from, to string, options wshard.WriteOptions) error {
	episode, files, err := wshard.OpenFile(from)
	if err != nil {
		return err
	}
	defer files.Close()
	data, err := episode.Data()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := wshard.Write(&out, data, options); err != nil {
		return err
	}
	return commit(to, out.Bytes())
}

// commit gives a file its name only when it is whole.
func commit(path string, data []byte) error {
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	if err = part.Chmod(0o644); err == nil {
		_, err = part.Write(data)
	}
	if err == nil {
		err = part.Sync()
	}
	if closing := part.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	return err
}
