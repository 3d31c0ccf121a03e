package follow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Tree polls a file, or the files of a directory without its subdirectories. Each Look
// checks whether Path is a directory. A Tree must not be used concurrently. Its
// exported fields must be set before the first Look.
type Tree[T any] struct {
	Path   string                 // a relative path is resolved at each Look
	Max    int64                  // the largest size of a file in bytes; less than the largest int64
	Wanted func(name string) bool // reports whether a file is used, by its name; nil means all
	Parse  Parse[T]

	files  map[string]*File[T]
	latest *View[T]
}

// View is the result of Tree.Look. It is immutable.
type View[T any] struct {
	Files []Seen[T] // sorted by path
	Err   error     // the error of Path itself; Files are then those of the previous Look
}

// Look returns the current files. It returns the same pointer while nothing changes. If
// Path was a file and is missing, the result has an error and the last content. A file
// that was removed from a directory is removed from the result.
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

// list returns the paths of the files, and whether they are in a directory.
func (t *Tree[T]) list() (paths []string, inside bool, err error) {
	info, err := os.Stat(t.Path)
	if err == nil && !info.IsDir() {
		return []string{t.Path}, false, nil
	}
	if err != nil {
		if _, known := t.files[t.Path]; known {
			return []string{t.Path}, false, nil // because File.Look returns the same error and the last content
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

// look polls each file, and discards the state of files that are not in paths.
func (t *Tree[T]) look(paths []string, inside bool) []Seen[T] {
	files := make(map[string]*File[T], len(paths))
	seen := make([]Seen[T], 0, len(paths))
	for _, path := range paths {
		f := t.files[path]
		if f == nil {
			f = &File[T]{Path: path, Max: t.Max, Parse: t.Parse}
		}
		// The file may have been removed since the listing, such as a symbolic link of
		// the kubelet.
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
