// wshard-dump FILE prints the channels of a file with dtype, shape and SHA-256 of their bytes, as JSON.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	wshard "github.com/warpdata/wshard-go"
)

func main() {
	isFull := flag.Bool("full", false, "add metadata, first values and a window of each channel")
	isLines := flag.Bool("lines", false, "print one line per file, errors too")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: wshard-dump [--full] FILE\n       wshard-dump [--full] --lines FILE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 || (!*isLines && flag.NArg() > 1) {
		flag.Usage()
		os.Exit(2)
	}
	status := 0
	for _, path := range flag.Args() {
		if !dump(path, *isFull, *isLines) {
			status = 1
		}
	}
	os.Exit(status)
}

func dump(path string, isFull, isLines bool) bool {
	var open []io.Closer
	defer func() {
		for _, each := range open {
			each.Close()
		}
	}()
	found, err := wshard.Describe(func() (*wshard.Episode, error) {
		episode, files, err := wshard.OpenFile(path)
		if err == nil {
			open = append(open, files)
		}
		return episode, err
	}, isFull)
	var said *wshard.Error
	switch {
	case err == nil:
	case isLines && errors.As(err, &said):
		found = wshard.Object{"error": said.Code, "message": said.Error()}
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
		if errors.As(err, &said) && said.Hint != "" {
			fmt.Fprintln(os.Stderr, said.Hint)
		}
		return false
	}
	text, err := wshard.DumpText(found, !isLines)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return false
	}
	fmt.Println(string(text))
	return true
}
