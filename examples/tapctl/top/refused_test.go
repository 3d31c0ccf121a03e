package top

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

func refusal(name, why string) error {
	return fmt.Errorf("%s: %w", name, status.Error(codes.PermissionDenied, why))
}

// A process that rejected the request is not called again and reports no second error.
func TestRejectionsStay(t *testing.T) {
	m, _ := newScreen(100, 40)
	screen := func() string { return strings.Join(m.lines(), "\n") }
	later := func(d time.Duration) { now := m.now().Add(d); m.now = func() time.Time { return now } }
	m.Update(newsMsg{err: refusal("one", "a secret")})
	m.Update(rowsMsg{&tappb.TopResponse{}})
	later(newsLast + time.Second)
	require.Contains(t, screen(), "a secret")
	require.Contains(t, screen(), "No request yet", "of the others")

	m.Update(newsMsg{err: errRefused})
	require.Contains(t, screen(), "connection refused")
	require.Contains(t, screen(), "a secret")
	require.Contains(t, screen(), "The request is repeated")
	later(newsLast + time.Second)
	require.NotContains(t, screen(), "connection refused")
	require.Contains(t, screen(), "a secret")

	m.Update(someRows())
	press(m, "enter")
	m.Update(newsMsg{2, refusal("two", "of another list")})
	m.Update(newsMsg{1, refusal("two", "not these")})
	later(time.Hour)
	require.NotContains(t, screen(), "of another list")
	require.Contains(t, screen(), "not these")
	press(m, "esc")
	require.NotContains(t, screen(), "not these")
	require.Contains(t, screen(), "a secret")
	m.Update(newsMsg{1, errRefused})
	require.NotContains(t, screen(), "connection refused", "an error of a closed list")
}

// If no process is left, the program ends.
func TestModelNoProcessLeft(t *testing.T) {
	m, _ := newScreen(100, 40)
	_, cmd := m.Update(overMsg{errRefused})
	require.Equal(t, errRefused, m.over)
	require.Equal(t, tea.QuitMsg{}, cmd())
}

func TestFollowerEnds(t *testing.T) {
	addr := refuser(t)
	for _, n := range []int{1, 2} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var all []tap.Process
		for range n {
			all = append(all, client(t, addr))
		}
		f := &follower{ctx: ctx, config: Config{
			Processes: all, Advise: func(err error) error { return fmt.Errorf("%w: advice", err) },
			Warn: func(err error) { t.Error("there is a screen for it", err) },
		}}
		var said []tea.Msg
		f.send = func(msg tea.Msg) {
			if _, ok := msg.(rowsMsg); !ok {
				said = append(said, msg)
			}
		}
		f.rows()
		require.NoError(t, ctx.Err(), "it does not wait for anything")
		cancel()
		require.Len(t, said, n)
		over := said[n-1].(overMsg).err
		require.Equal(t, n, strings.Count(over.Error(), "not you: advice"), over)
		require.True(t, n > 1 || Refused(over))
	}
}

// The interval of updates is not shorter than necessary, because each update costs the
// processes time.
func TestUpdateInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ left, most, want time.Duration }{
			{0, Refresh, Refresh},
			{time.Hour, Refresh, Refresh},
			{5 * time.Second, Refresh, 500 * time.Millisecond},
			{2 * time.Second, Refresh, 200 * time.Millisecond},
			{time.Millisecond, Refresh, least},
			{time.Hour, least, least},
		} {
			ctx, cancel := t.Context(), func() {}
			if tt.left > 0 {
				ctx, cancel = context.WithTimeout(ctx, tt.left)
			}
			require.Equal(t, tt.want, often(ctx, tt.most), tt.left)
			cancel()
		}
	})
}

// asking records the interval of the requests and does not respond.
type asking struct {
	tappb.UnimplementedTapServer

	every chan time.Duration
}

func (a asking) Top(req *tappb.TopRequest, s grpc.ServerStreamingServer[tappb.TopResponse]) error {
	a.every <- req.GetEvery().AsDuration()
	<-s.Context().Done()
	return s.Context().Err()
}

// Collect requests updates no more often than Live.
func TestCollectInterval(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	a := asking{every: make(chan time.Duration, 100)}
	tappb.RegisterTapServer(srv, a)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	for _, left := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithCancel(t.Context())
		if left > 0 {
			inner, end := context.WithTimeout(ctx, left)
			defer end()
			ctx = inner
		}
		all := []tap.Process{client(t, l.Addr().String())}
		done := make(chan error, 1)
		go func() {
			_, err := Collect(ctx, Config{Processes: all})
			done <- err
		}()
		select {
		case every := <-a.every:
			require.Equal(t, Refresh, every)
		case <-time.After(time.Minute):
			require.Fail(t, "it does not ask")
		}
		cancel()
		require.NoError(t, <-done)
	}
}
