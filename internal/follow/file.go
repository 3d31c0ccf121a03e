package follow

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// settled is the age at which the modification time of a file becomes reliable. A change of a
// younger file may leave the time the same, because file systems count time in steps of at most two
// seconds (FAT).
const settled = 2 * time.Second

// MaxSize is the size limit of a YAML file in bytes. Parsing may take several hundred times
// that size of memory for a short time.
const MaxSize = 16 << 20

// Content is the parsed content of a file, or an error. It is immutable.
type Content[T any] struct {
	Value T
	Err   error
}

// Parse parses data, the content of the file at path.
type Parse[T any] func(path string, data []byte) (T, error)

// File reads and parses the file at Path. The method Look reads the file again if the file has
// changed. A File must not be used concurrently. Its exported fields must be set before the first
// Look.
type File[T any] struct {
	Path  string // a relative path is resolved at each Look
	Max   int64  // the largest size in bytes; must be less than math.MaxInt64
	Parse Parse[T]

	info   os.FileInfo       // the result of Stat at the last read; nil forces a read
	young  bool              // whether the file was modified less than settled before the last read
	sum    [sha256.Size]byte // checksum of the content that was parsed last
	parsed *Content[T]       // the result of parsing that content
	seen   *Seen[T]          // the last result; nil before the first Look
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
		return f.seen
	}
	c, err := f.read()
	if err != nil {
		f.info = nil
		c = &Content[T]{Err: err}
	}
	now := Seen[T]{Latest: c}
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

// unchanged reports whether the file at Path is the same as at the last read. The argument info
// describes the file now. Its size, modification time and identity must be the same as at the last
// read. The identity differs if another file was renamed to Path. A file younger than settled (2 s)
// at the last read counts as changed, because a later change may have the same modification time.
func (f *File[T]) unchanged(info os.FileInfo) bool {
	return f.info != nil && !f.young && os.SameFile(info, f.info) &&
		info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime())
}

// read reads the file. If the checksum of the content has changed, read parses the content.
// Otherwise it returns the same result as before.
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

func (f *File[T]) tooLarge() error {
	return fmt.Errorf("%s is larger than %d bytes: split it", f.Path, f.Max)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
