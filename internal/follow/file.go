package follow

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// settled is the age at which a file's time tells one content from the next:
// the coarsest clock of a file system in use, FAT's, ticks every two seconds.
const settled = 2 * time.Second

// Content is what a file said at a look, or why that cannot be told. It does
// not change.
type Content[T any] struct {
	Value T
	Err   error
}

// Parse makes a value of what is in the file at path.
type Parse[T any] func(path string, data []byte) (T, error)

// file is a file, and what was last seen of it. It is for one goroutine at a
// time.
type file[T any] struct {
	path  string
	max   int64
	parse Parse[T]

	info   os.FileInfo // of what was read last; nil to read whatever is there
	young  bool        // its time may not tell the next change: it was new then
	sum    [sha256.Size]byte
	parsed *Content[T] // what has that sum
	latest *Content[T]
	good   *Content[T] // the last one without an error; nil if there was none
}

// look returns what the file says now: the same pointer for as long as that is
// the same content or the same error.
func (f *file[T]) look() *Content[T] {
	info, err := os.Stat(f.path)
	if err == nil && f.unchanged(info) {
		return f.latest
	}
	c, err := f.read()
	if err != nil {
		f.info = nil
		c = &Content[T]{Err: err}
	}
	if f.latest == nil || c.Err == nil || f.latest.Err == nil || c.Err.Error() != f.latest.Err.Error() {
		f.latest = c
	}
	if f.latest.Err == nil {
		f.good = f.latest
	}
	return f.latest
}

// unchanged compares what the path leads to: a rename, or the swap of a
// symbolic link on the way, leads to another file even if its size and time are
// those of the last one.
func (f *file[T]) unchanged(now os.FileInfo) bool {
	return f.info != nil && !f.young && os.SameFile(now, f.info) &&
		now.Size() == f.info.Size() && now.ModTime().Equal(f.info.ModTime())
}

// read reads the file and parses it, unless it reads as the last one did.
func (f *file[T]) read() (*Content[T], error) {
	opened, err := f.open()
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	// From before the reading: what is written during it is a change then.
	info, err := opened.Stat()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(opened, f.max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > f.max {
		return nil, f.tooLarge()
	}
	f.info, f.young = info, time.Since(info.ModTime()) < settled
	if sum := sha256.Sum256(data); f.parsed == nil || sum != f.sum {
		value, err := f.parse(f.path, data)
		f.sum, f.parsed = sum, &Content[T]{value, err}
	}
	return f.parsed, nil
}

// open refuses what is not a file: opening a pipe would wait for a writer.
func (f *file[T]) open() (*os.File, error) {
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file (%v)", f.path, info.Mode().Type())
	case info.Size() > f.max:
		return nil, f.tooLarge()
	}
	return os.Open(f.path)
}

func (f *file[T]) tooLarge() error {
	return fmt.Errorf("%s is larger than %d bytes: split it, or allow more with MaxSize", f.path, f.max)
}
