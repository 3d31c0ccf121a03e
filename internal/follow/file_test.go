package follow_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/follow"
)

// A look changes only if the content or the error changes.
func TestFileLook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f := follow.File[string]{Path: path, Max: 20, Parse: func(_ string, data []byte) (string, error) {
		if data[0] == '!' {
			return "", errors.New("it begins with a mark")
		}
		return string(data), nil
	}}
	age := func(by time.Duration) {
		when := time.Now().Add(-by)
		require.NoError(t, os.Chtimes(path, when, when))
	}
	none := f.Look()
	require.ErrorIs(t, none.Latest.Err, os.ErrNotExist)
	require.Nil(t, none.Good)
	require.Same(t, none, f.Look())

	put(t, path, "a")
	a := f.Look()
	require.Equal(t, &follow.Seen[string]{&follow.Content[string]{Value: "a"}, a.Latest}, a)
	age(time.Hour) // read, and found to be what it was
	require.Same(t, a, f.Look())

	put(t, path, "!")
	bad := f.Look()
	require.EqualError(t, bad.Latest.Err, "it begins with a mark")
	require.Same(t, a.Latest, bad.Good)
	put(t, path, "!!")
	require.Same(t, bad, f.Look(), "the same mistake in another content")
	require.NoError(t, os.Remove(path))
	gone := f.Look()
	require.ErrorIs(t, gone.Latest.Err, os.ErrNotExist)
	require.Same(t, a.Latest, gone.Good)

	put(t, path, "a")
	back := f.Look()
	require.NotSame(t, gone, back)
	require.Equal(t, a, back)

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.EqualError(t, f.Look().Latest.Err, path+" is not a regular file (d---------)")
}

func put(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
