package follow

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// settled is the age at which a file's modification time becomes reliable. If a younger file
// changes, the time may stay the same, because file systems count time in steps of up to two
// seconds (FAT).
const settled = 2 * time.Second

// MaxSize is the size limit for a YAML file in bytes. Parsing may briefly take several hundred
// times as much memory.
const MaxSize = 16 << 20

// Content is the parsed content of a file, or an error. It is immutable.
type Content[T any] struct {
	Value T
	Err   error
}

// Parse is a function that parses data, the content of the file at path, for a File.
type Parse[T any] func(path string, data []byte) (T, error)

// File reads and parses the file at Path. Look reads it again if it has changed. A File must not
// be used concurrently. Set its exported fields before the first Look.
type File[T any] struct {
	Path  string // a relative path is resolved at each Look
	Max   int64  // the largest size in bytes; must be less than math.MaxInt64
	Parse Parse[T]

	info   os.FileInfo       // the result of Stat at the last read; nil forces a read
	young  bool              // whether the file was modified less than settled before the last read
	sum    [sha256.Size]byte // checksum of the content that was parsed last
	parsed *Content[T]       // the result of parsing that content
	last   *Seen[T]          // the last result; nil before the first Look
}

// Seen is the result of [File.Look]. It is immutable.
type Seen[T any] struct {
	Latest *Content[T] // the result of the last read
	Good   *Content[T] // the last content without an error, or nil
}

// Look returns the current content. If neither the content nor the error has changed, it
// returns the same pointer as the previous call. For an unchanged file it only calls stat.
func (f *File[T]) Look() *Seen[T] {
	info, err := os.Stat(f.Path)
	if err == nil && f.unchanged(info) {
		return f.last
	}
	c, err := f.read()
	if err != nil {
		// The next Look reads the file again, even if it looks the same.
		f.info = nil
		c = &Content[T]{Err: err}
	}
	now := Seen[T]{Latest: c}
	if f.last != nil {
		// Nothing has changed: read has returned the same pointer, because the bytes are the same, or there is an error
		// with the same text. A new Seen would look like a change to the caller.
		if previous := f.last.Latest; previous == c || c.Err != nil && text(previous.Err) == text(c.Err) {
			return f.last
		}
		now.Good = f.last.Good
	}
	if c.Err == nil {
		now.Good = c
	}
	f.last = &now
	return f.last
}

// unchanged reports whether the file at Path is the same as at the last read. info describes the
// file now. Its size, modification time and identity must be the same as when it was last read.
// The identity differs if another file was renamed to Path. If the file was younger than settled
// (2 s) when it was last read, it counts as changed, because a later change may leave the
// modification time the same.
func (f *File[T]) unchanged(info os.FileInfo) bool {
	return f.info != nil && !f.young && os.SameFile(info, f.info) &&
		info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime())
}

// read reads the file, and returns its parsed content. If the checksum has not changed since the last
// read, it does not parse the content again, but returns the same pointer. A mistake that Parse finds is
// in Content.Err; the error is only for a file that cannot be read.
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
	f.info = info
	f.young = time.Since(info.ModTime()) < settled
	// A file that was written with the same content, or only touched, need not be parsed again.
	if sum := sha256.Sum256(data); f.parsed == nil || sum != f.sum {
		value, err := f.Parse(f.Path, data)
		f.sum = sum
		f.parsed = &Content[T]{value, err}
	}
	return f.parsed, nil
}

// open opens the file. It returns an error for a file that is not regular, because opening
// a pipe waits for a writer.
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

// tooLarge returns the error of a file that exceeds Max.
func (f *File[T]) tooLarge() error {
	return fmt.Errorf("%s is larger than %d bytes: split it", f.Path, f.Max)
}

// text returns the text of err, or "" if err is nil, so that two errors can be compared.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
