package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// The files of these tests are real; the time is that of a bubble.

// follower records the items of a stream.
type follower struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	items  []string
}

func follows(t *testing.T, r *Resolver, target string) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{cancel: cancel}
	go func() {
		for u, err := range r.Resolve(ctx, target) {
			f.mu.Lock()
			f.items = append(f.items, words(u, err))
			f.mu.Unlock()
		}
	}()
	return f
}

func words(u resolve.Update, err error) string {
	if err != nil {
		return err.Error()
	}
	items := u.Kind.String()
	for _, e := range u.Endpoints {
		items += " " + e.Addr.String()
	}
	return items
}

// expect waits for d and takes the items since the last call.
func (f *follower) expect(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, want, f.items)
	f.items = nil
}

// poll is long enough for one look, and short enough for no second one.
const poll = 500 * time.Millisecond

// longAgo is the modification time of files of equal size, so that they differ only in their
// identity. It is in the past in a synctest bubble too, where the year is 2000.
var longAgo = time.Unix(9e8, 0)

func web(addr string) string {
	return "destinations: {web: {endpoints: [{addr: '" + addr + "'}]}}\n"
}

func temp(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "targets.yaml")
	replace(t, path, content)
	return path
}

func age(t testing.TB, path string, by time.Duration) {
	t.Helper()
	when := time.Now().Add(-by)
	require.NoError(t, os.Chtimes(path, when, when))
}

func TestFollowRename(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	next := filepath.Join(filepath.Dir(path), "next")
	require.NoError(t, os.WriteFile(next, []byte(web("10.0.0.2:80")), 0o600))
	require.NoError(t, os.Chtimes(path, longAgo, longAgo))
	require.NoError(t, os.Chtimes(next, longAgo, longAgo))
	synctest.Test(t, func(t *testing.T) {
		f := follows(t, New(path), "web")
		f.expect(t, 0, "replace 10.0.0.1:80")
		f.expect(t, time.Minute)
		require.NoError(t, os.Rename(next, path))
		f.expect(t, poll, "replace 10.0.0.2:80")
	})
}

// The kubelet writes a new directory and replaces the link ..data. The mounted name is a
// link through ..data.
func TestFollowConfigMap(t *testing.T) {
	dir := t.TempDir()
	for version, addr := range map[string]string{"..2026_01": "10.0.0.1:80", "..2026_02": "10.0.0.2:80"} {
		path := filepath.Join(dir, version, "targets.yaml")
		require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(web(addr)), 0o600))
		require.NoError(t, os.Chtimes(path, longAgo, longAgo))
	}
	data := filepath.Join(dir, "..data")
	require.NoError(t, os.Symlink("..2026_01", data))
	require.NoError(t, os.Symlink(filepath.Join("..data", "targets.yaml"), filepath.Join(dir, "targets.yaml")))
	synctest.Test(t, func(t *testing.T) {
		f := follows(t, New(filepath.Join(dir, "targets.yaml")), "web")
		f.expect(t, 0, "replace 10.0.0.1:80")
		require.NoError(t, os.Symlink("..2026_02", data+"_tmp"))
		require.NoError(t, os.Rename(data+"_tmp", data))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..2026_01")))
		f.expect(t, poll, "replace 10.0.0.2:80")
	})
}

func TestFollowUnchangedTarget(t *testing.T) {
	path := temp(t, "destinations: {a: {endpoints: [{addr: 10.0.0.1:80}, {addr: 10.0.0.2:80}]}, b: {}}")
	synctest.Test(t, func(t *testing.T) {
		r := New(path)
		a, b, c := follows(t, r, "a"), follows(t, r, "b"), follows(t, r, "c")
		a.expect(t, 0, "replace 10.0.0.1:80 10.0.0.2:80")
		b.expect(t, 0, "empty")
		c.expect(t, 0, "does not exist")

		replace(t, path, "destinations: {c: {}, b: {exists: true}, a: {endpoints: [{addr: 10.0.0.2:80}, {addr: 10.0.0.1:80}]}}")
		c.expect(t, poll, "empty")
		a.expect(t, 0)
		b.expect(t, 0)

		replace(t, path, "destinations: {c: {endpoints: [{addr: 10.0.0.3:80}]}, a: {endpoints: [{addr: 10.0.0.2:80, weight: 3}]}}")
		c.expect(t, poll, "replace 10.0.0.3:80")
		a.expect(t, 0, "replace 10.0.0.2:80")
		b.expect(t, 0, "does not exist")
	})
}

func TestFollowInvalidFile(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	bad := func(line int) string {
		return fmt.Sprintf("%s:%d:1: destination: unknown field: there are destinations", path, line)
	}
	synctest.Test(t, func(t *testing.T) {
		r := New(path)
		f := follows(t, r, "web")
		f.expect(t, 0, "replace 10.0.0.1:80")
		replace(t, path, "destination: {}")
		f.expect(t, poll, bad(1))
		f.expect(t, time.Minute)
		replace(t, path, "destination: {} # the same mistake in another content")
		f.expect(t, time.Minute)
		follows(t, r, "web").expect(t, 0, "replace 10.0.0.1:80", bad(1))
		replace(t, path, "\ndestination: {}")
		f.expect(t, poll, bad(2))
		require.NoError(t, os.Remove(path))
		f.expect(t, poll, "file: stat "+path+": no such file or directory")
		f.expect(t, time.Minute)

		// The set never changed, but the end of the failure is an update.
		replace(t, path, web("10.0.0.1:80"))
		f.expect(t, poll, "replace 10.0.0.1:80")
		f.expect(t, time.Minute)
		replace(t, path, "destination: {}")
		f.expect(t, poll, bad(1))
		replace(t, path, web("10.0.0.2:80"))
		f.expect(t, poll, "replace 10.0.0.2:80")
	})
}

// A slow stream that begins while the file is invalid does not get an error that is over.
func TestFollowCorrectedFile(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	synctest.Test(t, func(t *testing.T) {
		r := New(path)
		first := follows(t, r, "web")
		first.expect(t, 0, "replace 10.0.0.1:80")
		replace(t, path, "destination: {}")
		first.expect(t, poll, path+":1:1: destination: unknown field: there are destinations")
		var items []string
		go func() {
			for u, err := range r.Resolve(t.Context(), "web") {
				items = append(items, words(u, err))
				time.Sleep(time.Minute)
			}
		}()
		time.Sleep(time.Second)
		replace(t, path, web("10.0.0.1:80"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"replace 10.0.0.1:80"}, items)
		replace(t, path, web("10.0.0.2:80"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"replace 10.0.0.1:80", "replace 10.0.0.2:80"}, items)
	})
}

func TestFollowMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "targets.yaml")
	synctest.Test(t, func(t *testing.T) {
		f := follows(t, New(path), "web")
		f.expect(t, time.Minute, "file: stat "+path+": no such file or directory")
		replace(t, path, "destinations: {}")
		f.expect(t, poll, "does not exist")
		replace(t, path, web("10.0.0.1:80"))
		f.expect(t, poll, "replace 10.0.0.1:80")
	})
}

// The same content again is an update only after an error.
func TestFollowRemovedFile(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	require.NoError(t, os.Chtimes(path, longAgo, longAgo))
	synctest.Test(t, func(t *testing.T) {
		f := follows(t, New(path), "web")
		f.expect(t, 0, "replace 10.0.0.1:80")
		require.NoError(t, os.Rename(path, path+".away"))
		f.expect(t, poll, "file: stat "+path+": no such file or directory")
		require.NoError(t, os.Rename(path+".away", path))
		f.expect(t, poll, "replace 10.0.0.1:80")
	})
}

func TestFollowInvalidSize(t *testing.T) {
	content := web("10.0.0.1:80")
	path := temp(t, content)
	synctest.Test(t, func(t *testing.T) {
		follows(t, New(path), "web").expect(t, 0, "replace 10.0.0.1:80")
		dir := filepath.Dir(path)
		follows(t, New(dir), "web").expect(t, 0, "file: "+dir+" is not a regular file (d---------)")

		require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("#", 16<<20)+"\n"), 0o600))
		follows(t, New(path), "web").expect(t, 0, "file: "+path+" is larger than 16777216 bytes: split it")
	})
}

func TestInvalidName(t *testing.T) {
	r := New(temp(t, web("10.0.0.1:80")))
	for _, target := range []string{"", "a b", "a\n", "\x00", "\xff"} {
		items := 0
		for _, err := range r.Resolve(t.Context(), target) {
			require.ErrorIs(t, err, resolve.ErrUnresolvable)
			items++
		}
		require.Equal(t, 1, items, "%q", target)
	}
}

func TestUpdateOwnership(t *testing.T) {
	r := New(temp(t, web("10.0.0.1:80")))
	for range 2 {
		for u, err := range r.Resolve(t.Context(), "web") {
			require.NoError(t, err)
			require.Equal(t, "replace 10.0.0.1:80", words(u, nil))
			u.Endpoints[0].Addr = addr("10.0.0.9:80")
			break
		}
	}
}
