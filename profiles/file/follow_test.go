package file

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// The files of these tests are real; the time is that of a bubble.

// watcher records the items of a Watch.
type watcher struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	items  []string
}

func watch(t *testing.T, s *Source, target string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{cancel: cancel}
	go func() {
		for p, err := range s.Watch(ctx, target) {
			w.mu.Lock()
			w.items = append(w.items, words(p, err))
			w.mu.Unlock()
		}
	}()
	return w
}

// words is the names of the routes, or "default".
func words(p *profiles.Profile, err error) string {
	if err != nil {
		return err.Error()
	}
	items := []string{}
	for _, r := range p.Routes {
		items = append(items, r.Name)
	}
	if len(items) == 0 {
		return "default"
	}
	return strings.Join(items, " ")
}

// expect waits for d and compares the items since the last call.
func (w *watcher) expect(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, want, w.items)
	w.items = nil
}

// poll is long enough for one look, and short enough for no second one.
const poll = 500 * time.Millisecond

// longAgo is the modification time of files of equal size, so that they differ only in their
// identity. It is in the past in a synctest bubble too, where the year is 2000.
var longAgo = time.Unix(9e8, 0)

// web is a file of a profile for web with one route.
func web(route string) string { return profile("web", route) }

func profile(target, route string) string {
	return "{target: " + target + ", routes: [{name: " + route + ", match: {method: GET}}]}\n"
}

func temp(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.yaml")
	replace(t, path, content)
	return path
}

// replace writes content to path as one should: beside it, and then by a rename.
func replace(t testing.TB, path, content string) {
	t.Helper()
	beside := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	require.NoError(t, os.WriteFile(beside, []byte(content), 0o600))
	require.NoError(t, os.Rename(beside, path))
}

func removed(target, found string) string {
	return `file: the profile of target "` + target + `" was removed; its last profile stays active; targets found: ` + found
}

func noFile(path string) string { return "file: stat " + path + ": no such file or directory" }

func TestFollowRename(t *testing.T) {
	path := temp(t, web("a"))
	next := filepath.Join(filepath.Dir(path), "next")
	require.NoError(t, os.WriteFile(next, []byte(web("b")), 0o600))
	require.NoError(t, os.Chtimes(path, longAgo, longAgo))
	require.NoError(t, os.Chtimes(next, longAgo, longAgo))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, New(path), "web:80")
		w.expect(t, 0, "a")
		w.expect(t, time.Minute)
		require.NoError(t, os.Rename(next, path))
		w.expect(t, poll, "b")
	})
}

// The kubelet writes a new directory and swaps the link ..data onto it. The
// mounted name is a link through ..data.
func TestFollowConfigMap(t *testing.T) {
	dir := t.TempDir()
	for version, content := range map[string]string{"..2026_01": web("a"), "..2026_02": web("b")} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		path := filepath.Join(dir, version, "web.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, os.Chtimes(path, longAgo, longAgo))
	}
	data := filepath.Join(dir, "..data")
	require.NoError(t, os.Symlink("..2026_01", data))
	require.NoError(t, os.Symlink(filepath.Join("..data", "web.yaml"), filepath.Join(dir, "web.yaml")))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, New(filepath.Join(dir, "web.yaml")), "web:80")
		w.expect(t, 0, "a")
		require.NoError(t, os.Symlink("..2026_02", data+"_tmp"))
		require.NoError(t, os.Rename(data+"_tmp", data))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..2026_01")))
		w.expect(t, poll, "b")
	})
}

func TestFollowTruncated(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, New(path), "web:80")
		w.expect(t, 0, "a")
		require.NoError(t, os.Truncate(path, 0))
		w.expect(t, poll, path+":1: there is nothing in the file; for no profile, write {}")
		require.NoError(t, os.WriteFile(path, []byte(web("b")), 0o600))
		w.expect(t, poll, "b")
		require.NoError(t, os.WriteFile(path, []byte(web("c")), 0o600)) // of the same size
		w.expect(t, poll, "c")
	})
}

func TestWatchYieldsChanges(t *testing.T) {
	path := temp(t, web("a")+"---\n"+profile("api", "x"))
	synctest.Test(t, func(t *testing.T) {
		s := New(path)
		w, api, other := watch(t, s, "web:80"), watch(t, s, "API."), watch(t, s, "other:80")
		w.expect(t, 0, "a")
		api.expect(t, 0, "x")
		other.expect(t, 0, "default")

		replace(t, path, "# Another order.\n"+profile("api", "y")+"---\n"+web("a"))
		api.expect(t, poll, "y")
		w.expect(t, 0)

		// One goes away, one comes.
		replace(t, path, web("b")+"---\n"+profile("other:80", "z"))
		w.expect(t, poll, "b")
		api.expect(t, 0, removed("API.", "other:80, web"))
		other.expect(t, 0, "z")
		replace(t, path, "{}")
		w.expect(t, poll, removed("web:80", "none"))
		api.expect(t, 0, removed("API.", "none"))
		other.expect(t, 0, removed("other:80", "none"))
		watch(t, s, "web:80").expect(t, 0, "default")
		replace(t, path, "target: [web, api]")
		w.expect(t, poll, "default")
		api.expect(t, 0, "default")
		other.expect(t, 0, removed("other:80", "api, web"))
	})
}

func TestWatchOfInvalidFile(t *testing.T) {
	path := temp(t, web("a"))
	bad := func(line string) string {
		return path + ":" + line + ": targets: unknown field: there are distribution, endpoint, name, opaque, precedence, retryBudget, routes, routesOnly, split, target\n" +
			path + ":" + line + ": target: missing: write the name of the service: web.default.svc.cluster.local"
	}
	synctest.Test(t, func(t *testing.T) {
		s := New(path)
		w := watch(t, s, "web:80")
		w.expect(t, 0, "a")
		replace(t, path, "targets: web")
		w.expect(t, poll, bad("1:1"))
		w.expect(t, time.Minute)
		replace(t, path, "targets: web # the same mistakes in another content")
		w.expect(t, time.Minute)
		watch(t, s, "web:80").expect(t, 0, "a", bad("1:1"))
		watch(t, s, "other:80").expect(t, 0, "default", bad("1:1")) // as far as is known
		replace(t, path, "\ntargets: web")
		w.expect(t, poll, bad("2:1"))
		require.NoError(t, os.Remove(path))
		w.expect(t, poll, noFile(path))
		w.expect(t, time.Minute)

		// The profile did not change, but the end of the error is reported.
		replace(t, path, web("a"))
		w.expect(t, poll, "a")
		w.expect(t, time.Minute)
	})
}

func TestWatchOfMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	synctest.Test(t, func(t *testing.T) {
		s := New(path)
		w, other := watch(t, s, "web:80"), watch(t, s, "other:80")
		w.expect(t, time.Minute, noFile(path))
		other.expect(t, 0, noFile(path)) // not the default: what it will have is not known
		replace(t, path, web("a"))
		w.expect(t, poll, "a")
		other.expect(t, 0, "default")
	})
}

func TestWatchOfLargeFile(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		watch(t, New(path), "web").expect(t, 0, "a")
		watch(t, New("/dev/null"), "web").expect(t, 0, "file: /dev/null is not a regular file (Dc---------)")
	})
}

func TestWatchOfInvalidTarget(t *testing.T) {
	s := New(temp(t, web("a")))
	for _, target := range []string{"", "a b", "web:http", "web:0", "web:65536", "a:b:80", "\xff", ":80", "*.example.com:80"} {
		items := 0
		for p, err := range s.Watch(t.Context(), target) {
			require.ErrorIs(t, err, profiles.ErrNoProfile)
			require.Nil(t, p)
			items++
		}
		require.Equal(t, 1, items, "%q", target)
	}
}

func TestWatchWithDoneContext(t *testing.T) {
	s := New(temp(t, web("a")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, target := range []string{"web", ""} {
		for range s.Watch(ctx, target) {
			t.Error("an item after the context was done")
		}
	}
}

func TestLogWarningsOnce(t *testing.T) {
	path := temp(t, sp("  routes: [{name: a, condition: {pathRegex: '('}}]\n"))
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := New(path, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		w := watch(t, s, "web.ns.svc.cluster.local:80")
		w.expect(t, time.Minute, "default")
		watch(t, s, "b").expect(t, time.Minute, "default")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 2)
		assert.Contains(t, lines[0], `level=WARN msg="left out of a profile" err="`+path+":6:33: spec.routes[0].condition: nothing")
		assert.Contains(t, lines[1], "missing closing )")
		replace(t, path, sp("  routes: [{name: b, condition: {pathRegex: '('}}, {name: c, condition: {method: GET}}]\n"))
		w.expect(t, poll, "c")
		assert.Equal(t, 4, strings.Count(out.String(), "\n"))
	})
}

// A context that ends while the profile is looked at ends the stream before
// the error that goes with it.
func TestWatchContextEnded(t *testing.T) {
	path := temp(t, web("a"))
	s := New(path)
	for range s.Watch(t.Context(), "web") {
		break // all items were read
	}
	replace(t, path, "}")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	items := 0
	for p, err := range s.Watch(ctx, "web") {
		require.NoError(t, err)
		require.Equal(t, "a", words(p, nil))
		cancel()
		items++
	}
	require.Equal(t, 1, items)
}

func TestRenamedTarget(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newRouter(t, New(path), "web:80", slog.New(slog.NewTextHandler(&out, nil)))
		require.Equal(t, "a", call(t, r, "GET /"))
		replace(t, path, profile("wbe", "a"))
		time.Sleep(poll)
		synctest.Wait()
		require.Equal(t, "a", call(t, r, "GET /"))
		require.Contains(t, out.String(), "level=WARN")
		require.Contains(t, out.String(), "targets found: wbe")
		replace(t, path, web("b"))
		time.Sleep(poll)
		synctest.Wait()
		require.Equal(t, "b", call(t, r, "GET /"))
	})
}

func TestRemovedTarget(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, New(path), "web:80")
		w.expect(t, 0, "a")
		replace(t, path, "target: [t01, t02, t03, t04, t05, t06, t07, t08, t09, t10, t11, t12]")
		w.expect(t, poll, removed("web:80", "t01, t02, t03, t04, t05, t06, t07, t08, t09, t10 and 2 more"))
	})
}

// A router in front of it all: a change of the file is a change of the route.
func TestRouterFollowsFile(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, New(path), "web:80", nil)
		require.Equal(t, "a", call(t, r, "GET /"))
		replace(t, path, web("b"))
		time.Sleep(poll)
		synctest.Wait()
		require.Equal(t, "b", call(t, r, "GET /"))
		replace(t, path, "}")
		time.Sleep(poll)
		synctest.Wait()
		require.Equal(t, "b", call(t, r, "GET /"))
	})
}

// A slow consumer gets the latest profile before an error, and no error that is over.
func TestFollowCorrectedMistake(t *testing.T) {
	path := temp(t, web("a"))
	synctest.Test(t, func(t *testing.T) {
		s := New(path)
		first := watch(t, s, "web")
		first.expect(t, 0, "a")
		slow := &watcher{}
		go func() {
			for p, err := range s.Watch(t.Context(), "web") {
				slow.mu.Lock()
				slow.items = append(slow.items, words(p, err))
				slow.mu.Unlock()
				time.Sleep(time.Minute)
			}
		}()
		time.Sleep(time.Second)
		replace(t, path, "[]")
		time.Sleep(time.Second)
		replace(t, path, web("a"))
		slow.expect(t, 10*time.Minute, "a")

		replace(t, path, web("b"))
		time.Sleep(time.Second)
		replace(t, path, web("c"))
		time.Sleep(time.Second)
		replace(t, path, "[]")
		slow.expect(t, 10*time.Minute, "b", "c", path+":1:1: want a mapping, not a list")
		replace(t, path, web("c"))
		slow.expect(t, 10*time.Minute, "c")
		first.cancel()
	})
}
