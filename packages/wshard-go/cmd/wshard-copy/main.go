// wshard-copy FROM TO writes an episode again: from a shard, a chunk list or a packed recording into one new shard.
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
	overwrites := flag.Bool("overwrite", false, "replace a target that exists")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: wshard-copy [--zstd] [--overwrite] FROM TO\n       wshard-copy [--zstd] [--overwrite] FROM... FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	count := flag.NArg() - 1
	if count < 1 {
		flag.Usage()
		os.Exit(2)
	}
	options := wshard.WriteOptions{}
	if *isZstd {
		options.Compression = "zstd"
	}
	to := flag.Arg(count)
	stat, err := os.Stat(to)
	isFolder := count > 1 || (err == nil && stat.IsDir())
	status := 0
	for _, from := range flag.Args()[:count] {
		target := to
		if isFolder {
			target = filepath.Join(to, filepath.Base(from))
		}
		if err := copyEpisode(from, target, options, *overwrites); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", from, err)
			var said *wshard.Error
			if errors.As(err, &said) && said.Hint != "" {
				fmt.Fprintln(os.Stderr, said.Hint)
			}
			status = 1
		}
	}
	os.Exit(status)
}

func copyEpisode(from, to string, options wshard.WriteOptions, overwrites bool) error {
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
	return commit(to, out.Bytes(), overwrites)
}

// commit gives a file its name only when it is whole. A link, unlike a rename, never takes the place of a file.
func commit(path string, data []byte, overwrites bool) error {
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
	give := os.Link
	if overwrites {
		give = os.Rename
	}
	if err == nil {
		err = give(part.Name(), path)
	}
	if errors.Is(err, os.ErrExist) {
		return errors.New("the target exists\nChoose another one, or pass --overwrite.")
	}
	return err
}
