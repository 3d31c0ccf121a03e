package top

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// process is one that has requests until the test ends, and its tap.
func process(t *testing.T) tap.Process {
	reg := new(tap.Registry)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	tap.NewServer(reg).Register(srv)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)

	answer := layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusTeapot)
		return w.Result(), nil
	})
	svc := httplayer.NewStack().With("tap", tap.Layer(reg, httplayer.HTTP{}, tap.Outbound,
		tap.WithDestination(netip.MustParseAddrPort("10.0.0.1:80"), map[string]string{"pod": "web-0"}))).Service(answer)
	var sending sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(sending.Wait)
	t.Cleanup(cancel)
	sending.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			if rsp, err := svc.Call(ctx, httptest.NewRequest(http.MethodGet, "http://web/seen", http.NoBody)); err == nil {
				rsp.Body.Close()
			}
		}
	})
	return client(t, l.Addr().String())
}

func client(t *testing.T, addr string) tap.Process {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return tap.Process{Name: addr, Conn: conn}
}

func TestLiveWithoutTerminal(t *testing.T) {
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.False(t, OnScreen(out))
	var watching sync.WaitGroup
	watching.Go(func() { // ends it when the table was printed twice
		defer cancel()
		assert.Eventually(t, func() bool {
			text, err := os.ReadFile(out.Name())
			return err == nil && strings.Count(string(text), " /seen ") > 1
		}, 30*time.Second, 10*time.Millisecond)
	})
	rows, err := Live(ctx, out, Config{Note: "a note", Processes: []tap.Process{process(t)}, Every: 100 * time.Millisecond})
	watching.Wait()
	require.NoError(t, err)
	require.Len(t, rows, 1)
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	require.Greater(t, strings.Count(string(text), "a note\nSource "), 1)
	require.Contains(t, string(text), " web-0                   GET        /seen ")
	require.NotContains(t, string(text), "\x1b")
}

// refuser is the address of a process that rejects all watchers.
func refuser(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
		return status.Error(codes.Unauthenticated, "not you")
	}))
	tap.NewServer(nil).Register(srv)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return l.Addr().String()
}

// A permanent rejection is reported. It ends Live if no other process is left.
func TestLiveRejections(t *testing.T) {
	t.Parallel()
	refusing := client(t, refuser(t))
	_, err := Collect(t.Context(), Config{Processes: []tap.Process{refusing}, Warn: func(err error) { t.Error("said twice", err) }})
	require.ErrorContains(t, err, "not you")
	require.True(t, Refused(err))

	other := process(t)
	collect := func(within time.Duration) (warned, rows int) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		seen, err := Collect(ctx, Config{
			Processes: []tap.Process{refusing, other},
			Warn:      func(err error) { warned++; require.ErrorContains(t, err, "advice") },
			Advise:    func(err error) error { return errors.Join(errors.New("advice"), err) },
		})
		require.NoError(t, err)
		return warned, len(seen)
	}
	warned, rows := collect(time.Second / 2)
	for within := time.Second; warned+rows < 2 && within < time.Minute; within *= 2 { // on a machine that is slow
		warned, rows = collect(within)
	}
	require.Equal(t, 1, warned)
	require.Equal(t, 1, rows, "of the other process")
}

// The program gets rows and requests as messages, and releases all streams at the end.
func TestFollower(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	msgs := make(chan tea.Msg, 1000)
	f := &follower{ctx: ctx, config: Config{Processes: []tap.Process{process(t), client(t, "127.0.0.1:1")}, Every: 100 * time.Millisecond}}
	f.send = func(msg tea.Msg) { msgs <- msg }
	f.running.Go(f.rows)
	stop := f.watch(7, &tappb.WatchRequest{})
	rows, seen, news := false, false, false
	for !rows || !seen || !news {
		switch msg := (<-msgs).(type) {
		case rowsMsg:
			rows = rows || len(msg.answer.GetRows()) == 1
		case seenMsg:
			require.Equal(t, 7, msg.number)
			seen = true
		case newsMsg:
			require.ErrorContains(t, msg.err, "127.0.0.1:1: ")
			news = true
		}
	}
	stop()
	cancel()
	f.running.Wait()
}

func TestBatchLimit(t *testing.T) {
	var b batch
	for range maxBatch + 3 {
		b.add(tap.ProcessEvent{})
	}
	seen, lost := b.take()
	require.Len(t, seen, maxBatch)
	require.Equal(t, 3, lost)
	seen, lost = b.take()
	require.Empty(t, seen)
	require.Zero(t, lost)
}
