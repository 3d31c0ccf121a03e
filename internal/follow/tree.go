package follow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Tree is a file, or the files of a directory that Wanted takes, not those of
// the directories in it. Which of the two, is seen anew at each look. A Tree is
// for one goroutine at a time; its fields are set before the first look.
type Tree[T any] struct {
	Path   string                 // a relative one is taken from where the process is at each look
	Max    int64                  // bytes above which a file is refused; below the largest int64
	Wanted func(name string) bool // by its name in the directory; nil is all
	Parse  Parse[T]

	files  map[string]*File[T]
	latest *View[T]
}

// View is what was seen at a look. It does not change.
type View[T any] struct {
	Files []Seen[T] // in the order of their paths
	Err   error     // why the path itself could not be read; then the files are those of the last look
}

// Look returns what is there now: the same pointer for as long as that is the
// same. The file itself that is not there is an error, and what it said is kept;
// one that goes from a directory is gone.
func (t *Tree[T]) Look() *View[T] {
	v := &View[T]{}
	paths, inside, err := t.list()
	if err != nil {
		v.Err = err
		if t.latest != nil {
			v.Files = t.latest.Files
		}
	} else {
		v.Files = t.look(paths, inside)
	}
	if t.latest == nil || !t.latest.same(v) {
		t.latest = v
	}
	return t.latest
}

// list returns the files that are to be looked at, and whether they are those
// inside a directory.
func (t *Tree[T]) list() (paths []string, inside bool, err error) {
	info, err := os.Stat(t.Path)
	if err == nil && !info.IsDir() {
		return []string{t.Path}, false, nil
	}
	if err != nil {
		if _, known := t.files[t.Path]; known {
			return []string{t.Path}, false, nil // its own look tells the same, and keeps what was good
		}
		return nil, false, err
	}
	entries, err := os.ReadDir(t.Path)
	if err != nil {
		return nil, true, err
	}
	for _, e := range entries {
		if !e.IsDir() && (t.Wanted == nil || t.Wanted(e.Name())) {
			paths = append(paths, filepath.Join(t.Path, e.Name()))
		}
	}
	return paths, true, nil
}

// look looks at each file, and forgets the others.
func (t *Tree[T]) look(paths []string, inside bool) []Seen[T] {
	files := make(map[string]*File[T], len(paths))
	seen := make([]Seen[T], 0, len(paths))
	for _, path := range paths {
		f := t.files[path]
		if f == nil {
			f = &File[T]{Path: path, Max: t.Max, Parse: t.Parse}
		}
		// It may have gone since the directory was listed, or be a link that
		// the kubelet is about to take away.
		now := f.Look()
		if inside && errors.Is(now.Latest.Err, fs.ErrNotExist) {
			continue
		}
		files[path] = f
		seen = append(seen, *now)
	}
	t.files = files
	return seen
}

func (v *View[T]) same(other *View[T]) bool {
	return slices.Equal(v.Files, other.Files) && text(v.Err) == text(other.Err)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
