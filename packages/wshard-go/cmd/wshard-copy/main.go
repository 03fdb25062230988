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
		fmt.Fprintln(flag.CommandLine.Output(), "usage: wshard-copy [--zstd] FROM TO\n       wshard-copy [--zstd] FROM... FOLDER")
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
		if err := copyEpisode(from, target, options); err != nil {
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
