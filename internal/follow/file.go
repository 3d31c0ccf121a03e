package follow

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// settled is the age from which a modification time is different after every later
// change. The coarsest clock, that of FAT, has steps of two seconds.
const settled = 2 * time.Second

// Content is the parsed content of a file, or an error. It is immutable.
type Content[T any] struct {
	Value T
	Err   error
}

// Parse is a function that parses the content of the file at path.
type Parse[T any] func(path string, data []byte) (T, error)

// File polls one file. It must not be used concurrently. Its exported fields
// must be set before the first Look.
type File[T any] struct {
	Path  string // a relative path is resolved at each Look
	Max   int64  // the largest size in bytes; less than the largest int64
	Parse Parse[T]

	info   os.FileInfo // the info of the last read; nil forces a read
	young  bool        // whether the file was modified less than settled before the last read
	sum    [sha256.Size]byte
	parsed *Content[T] // the content with that sum
	seen   *Seen[T]    // the last result; nil before the first Look
}

// Seen is the result of File.Look. It is immutable.
type Seen[T any] struct {
	Path   string
	Latest *Content[T]
	Good   *Content[T] // the last content without an error, or nil
}

// Look returns the current content. It returns the same pointer while neither the
// content nor the error changes. For an unchanged file it calls stat once.
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

// unchanged reports whether now describes the file of the last read. It compares the identity
// of the file too, because a rename can lead to another file with the same size and time.
func (f *File[T]) unchanged(now os.FileInfo) bool {
	return f.info != nil && !f.young && os.SameFile(now, f.info) &&
		now.Size() == f.info.Size() && now.ModTime().Equal(f.info.ModTime())
}

// read reads the file. It parses the content unless its sum is unchanged.
func (f *File[T]) read() (*Content[T], error) {
	opened, err := f.open()
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	// Stat is called first, so that a write during the read counts as a later change.
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

// open opens the file. It rejects files that are not regular, because opening a pipe
// waits for a writer.
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
