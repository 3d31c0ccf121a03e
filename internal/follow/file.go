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

// File is a file, whatever its name is, and what was last seen of it. It is for
// one goroutine at a time; its fields are set before the first look.
type File[T any] struct {
	Path  string // a relative one is taken from where the process is at each look
	Max   int64  // bytes above which the file is refused; below the largest int64
	Parse Parse[T]

	info   os.FileInfo // of what was read last; nil to read whatever is there
	young  bool        // its time may not tell the next change: it was new then
	sum    [sha256.Size]byte
	parsed *Content[T] // what has that sum
	seen   *Seen[T]    // nil before the first look
}

// Seen is what was seen of one file. It does not change.
type Seen[T any] struct {
	Path   string
	Latest *Content[T]
	Good   *Content[T] // the last one without an error; nil if there was none
}

// Look returns what the file says now: the same pointer for as long as that is
// the same content or the same error. Of a file that did not change it is a stat.
func (f *File[T]) Look() *Seen[T] {
	info, err := os.Stat(f.Path)
	if err == nil && f.unchanged(info) {
		return f.seen
	}
	c, err := f.read()
	if err != nil {
		f.info = nil
		c = &Content[T]{Err: err}
	}
	now := Seen[T]{Path: f.Path, Latest: c}
	if f.seen != nil {
		if was := f.seen.Latest; was == c || c.Err != nil && text(was.Err) == text(c.Err) {
			return f.seen
		}
		now.Good = f.seen.Good
	}
	if c.Err == nil {
		now.Good = c
	}
	f.seen = &now
	return f.seen
}

// unchanged compares what the path leads to: a rename, or the swap of a
// symbolic link on the way, leads to another file even if its size and time are
// those of the last one.
func (f *File[T]) unchanged(now os.FileInfo) bool {
	return f.info != nil && !f.young && os.SameFile(now, f.info) &&
		now.Size() == f.info.Size() && now.ModTime().Equal(f.info.ModTime())
}

// read reads the file and parses it, unless it reads as the last one did.
func (f *File[T]) read() (*Content[T], error) {
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
	data, err := io.ReadAll(io.LimitReader(opened, f.Max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > f.Max {
		return nil, f.tooLarge()
	}
	f.info, f.young = info, time.Since(info.ModTime()) < settled
	if sum := sha256.Sum256(data); f.parsed == nil || sum != f.sum {
		value, err := f.Parse(f.Path, data)
		f.sum, f.parsed = sum, &Content[T]{value, err}
	}
	return f.parsed, nil
}

// open refuses what is not a file: opening a pipe would wait for a writer.
func (f *File[T]) open() (*os.File, error) {
	info, err := os.Stat(f.Path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file (%v)", f.Path, info.Mode().Type())
	case info.Size() > f.Max:
		return nil, f.tooLarge()
	}
	return os.Open(f.Path)
}

func (f *File[T]) tooLarge() error {
	return fmt.Errorf("%s is larger than %d bytes: split it, or allow more with WithMaxSize", f.Path, f.Max)
}
