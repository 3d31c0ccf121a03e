package httplayer_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// reports collects the calls of the report function of a LogWriter.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) add(dropped int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprint(dropped, " ", err))
}

func (r *reports) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func flush(t *testing.T, w *httplayer.LogWriter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.Flush(ctx))
}

// accessLogServer serves a handler behind an access log in the JSON format.
func accessLogServer(t *testing.T, to io.Writer) (url string, stop func()) {
	t.Helper()
	svc := httplayer.FromHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		_ = tcplayer.Serve(ctx, l, httplayer.NewServer(svc, httplayer.WithAccessLog(to, httplayer.JSONLog, nil)))
	})
	stop = func() { cancel(); served.Wait() }
	t.Cleanup(stop)
	return "http://" + l.Addr().String() + "/", stop
}

// get sends n requests whose log lines have at least size bytes.
func get(t *testing.T, url string, n, size int) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("User-Agent", strings.Repeat("x", size))
		rsp, err := client.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
		_ = rsp.Body.Close()
	}
}

// Nobody reads the pipe of an access log. All requests are answered, and each of their lines is
// either read later or counted.
func TestAccessLogStuckPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close()
	var seen reports
	lines := httplayer.NewLogWriter(writer, seen.add)
	const requests, size = 400, 8 << 10
	url, stop := accessLogServer(t, lines)
	get(t, url, requests, size)
	stop() // so that the last line is written, too
	dropped := lines.Dropped()
	assert.Positive(t, dropped)
	require.Eventually(t, func() bool { return len(seen.texts()) == 1 }, time.Minute, time.Millisecond)
	assert.Equal(t, []string{"0 the output is stuck or too slow"}, seen.texts())
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, lines.Flush(short), context.DeadlineExceeded)

	var read sync.WaitGroup
	var got int
	read.Go(func() {
		for all := bufio.NewScanner(reader); all.Scan(); got++ {
			assert.True(t, strings.HasPrefix(all.Text(), "{") && strings.HasSuffix(all.Text(), "}"))
		}
	})
	flush(t, lines)
	require.NoError(t, writer.Close())
	read.Wait()
	assert.Equal(t, requests, got+int(dropped))
	assert.Equal(t, []string{"0 the output is stuck or too slow", fmt.Sprint(dropped, " <nil>")}, seen.texts())
	assert.Equal(t, dropped, lines.Dropped())
}

// The reader of a pipe is gone. Requests are answered, also if the access log has no LogWriter.
func TestAccessLogReaderGone(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer writer.Close()
	require.NoError(t, reader.Close())
	var seen reports
	lines := httplayer.NewLogWriter(writer, seen.add)
	url, _ := accessLogServer(t, lines)
	get(t, url, 20, 1)
	require.Eventually(t, func() bool { return lines.Dropped() == 20 }, time.Minute, time.Millisecond)
	flush(t, lines)
	require.Len(t, seen.texts(), 1)
	assert.Contains(t, seen.texts()[0], syscall.EPIPE.Error())

	stuck := make(chan struct{})
	defer close(stuck)
	url, _ = accessLogServer(t, writerFunc(func(p []byte) (int, error) { <-stuck; return len(p), nil }))
	get(t, url, 20, 1)
}
