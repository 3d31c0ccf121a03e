package file

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gotower/gotower/resolve"
)

// settled is the age at which a file's time tells one content from the next:
// the coarsest clock of a file system in use, FAT's, ticks every two seconds.
const settled = 2 * time.Second

// content is what the file said at a look, or why that cannot be told.
type content struct {
	targets map[string][]resolve.Endpoint
	err     error
}

// source is the file, and what was last seen of it. It is for one goroutine at
// a time.
type source struct {
	path string
	max  int64

	info   os.FileInfo // of what was read last; nil to read whatever is there
	young  bool        // its time may not tell the next change: it was new then, or its clock is not ours
	sum    [sha256.Size]byte
	parsed *content // what has that sum
	latest *content
}

// look returns what the file says now: the same pointer for as long as that is
// the same content or the same error. It reads only what may have changed.
func (s *source) look() *content {
	info, err := os.Stat(s.path)
	if err == nil && s.unchanged(info) {
		return s.latest
	}
	c, err := s.read()
	if err != nil {
		s.info = nil
		c = &content{err: fmt.Errorf("file: %w", err)}
	}
	if s.latest == nil || c.err == nil || s.latest.err == nil || c.err.Error() != s.latest.err.Error() {
		s.latest = c
	}
	return s.latest
}

// unchanged compares what the path leads to: a rename, or the swap of a
// symbolic link on the way, leads to another file even if its size and time are
// those of the last one.
func (s *source) unchanged(now os.FileInfo) bool {
	return s.info != nil && !s.young && os.SameFile(now, s.info) &&
		now.Size() == s.info.Size() && now.ModTime().Equal(s.info.ModTime())
}

// read reads the file and parses it, unless it reads as the last one did.
func (s *source) read() (*content, error) {
	f, err := s.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// From before the reading: what is written during it is a change then.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, s.max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > s.max {
		return nil, s.tooLarge()
	}
	s.info, s.young = info, time.Since(info.ModTime()) < settled
	if sum := sha256.Sum256(data); s.parsed == nil || sum != s.sum {
		targets, err := Parse(s.path, data)
		s.sum, s.parsed = sum, &content{targets, err}
	}
	return s.parsed, nil
}

// open refuses what is not a file: opening a pipe would wait for a writer.
func (s *source) open() (*os.File, error) {
	info, err := os.Stat(s.path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file (%v)", s.path, info.Mode().Type())
	case info.Size() > s.max:
		return nil, s.tooLarge()
	}
	return os.Open(s.path)
}

func (s *source) tooLarge() error {
	return fmt.Errorf("%s is larger than %d bytes: split it, or allow more with MaxSize", s.path, s.max)
}
