package follow

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newTree takes files whose names begin with a letter below x, and in them
// anything but "bad".
func newTree(path string, parses *int) *Tree[string] {
	return &Tree[string]{
		Path: path, Max: 20,
		Wanted: func(name string) bool { return name < "x" },
		Parse: func(path string, data []byte) (string, error) {
			*parses++
			if string(data) == "bad" {
				return "", errors.New("bad")
			}
			return filepath.Base(path) + "=" + string(data), nil
		},
	}
}

func say(v *View[string]) string {
	var said []string
	for _, f := range v.Files {
		part := ""
		if f.Good != nil {
			part = f.Good.Value
		}
		if f.Latest.Err != nil {
			part += "!" + f.Latest.Err.Error()
		}
		said = append(said, part)
	}
	if v.Err != nil {
		said = append(said, v.Err.Error())
	}
	return strings.Join(said, " ")
}

func requireSteady(t *testing.T, tree *Tree[string]) {
	t.Helper()
	first := tree.Look()
	require.Same(t, first, tree.Look())
}

func put(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	parses := 0
	tree := newTree(dir, &parses)
	none := "stat " + dir + ": no such file or directory"
	require.Equal(t, none, say(tree.Look()))
	requireSteady(t, tree)

	require.NoError(t, os.Mkdir(dir, 0o700))
	require.Empty(t, say(tree.Look()))
	put(t, filepath.Join(dir, "b"), "1")
	put(t, filepath.Join(dir, "a"), "bad")
	put(t, filepath.Join(dir, "x"), "2")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "d")))
	require.Equal(t, "!bad b=1", say(tree.Look()))
	requireSteady(t, tree)
	require.Equal(t, 2, parses, "what reads as before is not parsed again")

	put(t, filepath.Join(dir, "a"), "3")
	require.Equal(t, "a=3 b=1", say(tree.Look()))
	put(t, filepath.Join(dir, "a"), "bad")
	require.Equal(t, "a=3!bad b=1", say(tree.Look()))
	put(t, filepath.Join(dir, "a"), strings.Repeat("4", 21))
	require.Equal(t, "a=3!"+filepath.Join(dir, "a")+" is larger than 20 bytes: split it, or allow more with WithMaxSize b=1", say(tree.Look()))
	require.NoError(t, os.Remove(filepath.Join(dir, "a")))
	require.Equal(t, "b=1", say(tree.Look()))
	put(t, filepath.Join(dir, "a"), "bad")
	require.Equal(t, "!bad b=1", say(tree.Look()), "a file that went is forgotten")

	require.NoError(t, os.RemoveAll(dir))
	require.Equal(t, "!bad b=1 "+none, say(tree.Look()))
	requireSteady(t, tree)
	put(t, dir, "5")
	require.Equal(t, "d=5", say(tree.Look()), "it may become a file")
}

func TestAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	parses := 0
	tree := newTree(path, &parses)
	put(t, path, "1")
	require.Equal(t, "x=1", say(tree.Look()), "whatever its name is")
	require.NoError(t, os.Remove(path))
	none := "stat " + path + ": no such file or directory"
	require.Equal(t, "x=1!"+none, say(tree.Look()), "what was known is kept")
	requireSteady(t, tree)
	put(t, path, "1")
	require.Equal(t, "x=1", say(tree.Look()))
	require.Equal(t, 1, parses)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.Empty(t, say(tree.Look()), "it may become a directory")
	require.Equal(t, "/dev/null is not a regular file (Dc---------)", strings.TrimPrefix(say(newTree("/dev/null", &parses).Look()), "!"))
}

func TestALookReadsOnlyWhatMayHaveChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put(t, path, "1")
	parses := 0
	tree := newTree(path, &parses)
	inPlace := func(content string) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		put(t, path, content)
		require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
	age := func(by time.Duration) {
		when := time.Now().Add(-by)
		require.NoError(t, os.Chtimes(path, when, when))
	}
	age(-time.Hour) // as new as it is, however slow this machine is
	require.Equal(t, "f=1", say(tree.Look()))
	inPlace("2") // within a tick of the file system's clock
	require.Equal(t, "f=2", say(tree.Look()))

	age(time.Hour)
	same := tree.Look()
	inPlace("3") // nothing but the content tells
	require.Same(t, same, tree.Look())
	inPlace("44") // the size does
	require.Equal(t, "f=44", say(tree.Look()))
	inPlace("5")
	age(2 * time.Hour) // and the time
	require.Equal(t, "f=5", say(tree.Look()))
	other := path + "2"
	put(t, other, "6")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(other, info.ModTime(), info.ModTime()))
	require.NoError(t, os.Rename(other, path)) // and which file it is
	require.Equal(t, "f=6", say(tree.Look()))
}
