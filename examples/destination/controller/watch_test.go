package controller

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
)

func fileWith(addr string) string {
	return "destinations:\n  web.test:80:\n    endpoints: [{addr: " + addr + "}]\n"
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// watching watches a file, and runs a Get stream, in the test's bubble; poll lets
// one poll pass. The files are real.
type watching struct {
	t      *testing.T
	log    *record
	stream *fakeStream
}

// record collects the log.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

// take returns the log since the last call.
func (r *record) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.buf.String()
	r.buf.Reset()
	return s
}

func watch(t *testing.T, path string) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{t: t, log: &record{}, stream: &fakeStream{ctx: ctx, sent: make(chan *pb.Update, 10)}}
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	c := New(slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{ReplaceAttr: plain})))
	_, follow, err := c.Load(path)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(ctx)
	}()
	streamed := make(chan error, 1)
	go func() { streamed <- c.Get(&pb.GetDestination{Path: web}, w.stream) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		require.Error(t, <-streamed)
	})
	synctest.Wait()
	w.log.take()
	return w
}

func (w *watching) poll() {
	time.Sleep(pollInterval)
	synctest.Wait()
}

// changes returns the addresses that were added and how many were removed since
// the last time.
func (w *watching) changes() (added []uint32, removed int) {
	for len(w.stream.sent) > 0 {
		u := <-w.stream.sent
		for _, ep := range u.GetAdd().GetAddrs() {
			added = append(added, ep.GetAddr().GetIp().GetIpv4()&0xff)
		}
		removed += len(u.GetRemove().GetAddrs())
	}
	return added, removed
}

func (w *watching) expect(added []uint32, removed int) {
	w.t.Helper()
	gotAdded, gotRemoved := w.changes()
	require.Equal(w.t, added, gotAdded)
	require.Equal(w.t, removed, gotRemoved)
}

func TestWatchRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.yaml")
	write(t, path, fileWith("10.0.0.1:80"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		w.expect([]uint32{1}, 0)
		w.poll()
		w.expect(nil, 0)

		// The size and the time of the file stay as they were.
		before, err := os.Stat(path)
		require.NoError(t, err)
		write(t, path+".new", fileWith("10.0.0.2:80"))
		require.NoError(t, os.Chtimes(path+".new", before.ModTime(), before.ModTime()))
		require.NoError(t, os.Rename(path+".new", path))
		w.expect(nil, 0)
		w.poll()
		w.expect([]uint32{2}, 1)
		require.Equal(t, "level=INFO msg=\"configuration applied\" file="+path+" destinations=1\n", w.log.take())
	})
}

// Kubernetes changes a mounted ConfigMap by swapping a symbolic link to a
// directory.
func TestWatchSwappedSymlink(t *testing.T) {
	dir := t.TempDir()
	for version, a := range map[string]string{"v1": "10.0.0.1:80", "v2": "10.0.0.2:80"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "d.yaml"), fileWith(a))
	}
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Symlink("v1", data))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, filepath.Join(data, "d.yaml"))
		w.expect([]uint32{1}, 0)
		require.NoError(t, os.Symlink("v2", data+".new"))
		require.NoError(t, os.Rename(data+".new", data))
		w.poll()
		w.expect([]uint32{2}, 1)
	})
}

func TestWatchKeepsLastValidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.yaml")
	write(t, path, fileWith("10.0.0.1:80"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		w.expect([]uint32{1}, 0)

		write(t, path, fileWith("10.0.0.2:0")+"  x..y: {}\n")
		for range 5 {
			w.poll()
		}
		w.expect(nil, 0)
		const bad = `level=ERROR msg="invalid configuration, the last valid one stays active" file=`
		require.Equal(t, bad+path+` line=3 reason="destinations[\"web.test:80\"].endpoints[0].addr \"10.0.0.2:0\": want a port from 1 to 65535"`+"\n"+
			bad+path+` line=4 reason="destinations[\"x..y\"]: \"x..y\" is not host:port: a label is empty"`+"\n",
			w.log.take(), "every mistake, once")

		write(t, path, "destinations: [")
		w.poll()
		w.poll()
		require.Equal(t, bad+path+` line=1 reason="not YAML: did not find expected node content"`+"\n", w.log.take())

		require.NoError(t, os.Remove(path))
		w.poll()
		w.poll()
		logged := w.log.take()
		require.Equal(t, 1, strings.Count(logged, "\n"), logged)
		require.Contains(t, logged, "the last valid one stays active")
		w.expect(nil, 0)

		write(t, path, fileWith("10.0.0.3:80"))
		w.poll()
		w.expect([]uint32{3}, 1)
	})
}

// Before the first state, a stream sends nothing, and does not report that the name does
// not exist.
func TestStreamsBeforeFirstState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, stream := New(nil), &fakeStream{ctx: ctx, sent: make(chan *pb.Update, 1)}
		ended := make(chan error, 1)
		go func() { ended <- c.Get(&pb.GetDestination{Path: web}, stream) }()
		time.Sleep(time.Hour)
		require.Empty(t, stream.sent)
		require.NoError(t, c.Set(Config{}))
		synctest.Wait()
		same(t, none(false), <-stream.sent)
		cancel()
		<-ended
	})
}

func TestLoadInvalidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.yaml")
	_, _, err := New(nil).Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	write(t, path, "destinations: 7\n")
	_, _, err = New(nil).Load(path)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, Error{File: path, Line: 1, Column: 15, Field: "destinations", Value: "7", Reason: "want a mapping, not a single value"}, *e)
}

// A pipe can be read only once. A second read returns nothing, or blocks.
func TestLoadPipe(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	_, err = w.WriteString(fileWith("10.0.0.1:80"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err := os.Stat(path); err != nil {
		t.Skip("a pipe has no name here: ", err)
	}
	synctest.Test(t, func(t *testing.T) {
		ours := watch(t, path)
		ours.expect([]uint32{1}, 0)
		ours.poll()
		ours.poll()
		ours.expect(nil, 0)
		require.Empty(t, ours.log.take())
	})
}
