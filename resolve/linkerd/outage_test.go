package linkerd

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/resolve"
)

const outageTime = 30 * time.Minute

// For half an hour the controller is away or returns errors, and then has other
// endpoints. The last set stays, the controller gets few requests, and the log has two
// lines.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"unreachable": true, "refusing": false} {
		for _, most := range []time.Duration{10 * time.Second, time.Minute} {
			t.Run(fmt.Sprint(name, ", max ", most), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testOutage(t, gone, most) })
			})
		}
	}
}

func testOutage(t *testing.T, gone bool, most time.Duration) {
	var (
		m   inMemory
		c   controller
		log bytes.Buffer
		set resolve.Set
	)
	endpoint := func(n int) resolve.Endpoint {
		return resolve.Endpoint{ID: resolve.ID{Addr: addr1}, Weight: uint32(n)}
	}
	c.set("web", endpoint(1))
	server := m.start(t, c.get)
	conn := &counted{ClientConnInterface: m.connect(t)}
	r := New(conn,
		WithBackoff(resolve.Backoff{Min: 100 * time.Millisecond, Max: most, Jitter: 0.1}),
		WithStreamLimits(Limits{Idle: -1, Lifetime: -1}),
		WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))),
	)
	errs := 0
	go func() {
		for u, err := range r.Resolve(t.Context(), "web") {
			if err != nil {
				errs++
				continue
			}
			set.Apply(u)
		}
	}()
	known := func(n int) {
		t.Helper()
		synctest.Wait()
		require.Equal(t, 1, set.Len())
		require.True(t, set.Endpoints()[0].Equal(endpoint(n)))
	}
	time.Sleep(time.Hour)
	known(1)
	require.Len(t, conn.calls, 1)

	start := time.Now()
	restart := func() {}
	if gone {
		server.Stop()
		restart = func() { m.start(t, c.get) }
	}
	c.interrupt("web", func() {
		for range 30 {
			time.Sleep(outageTime / 30)
			known(1)
		}
		c.set("web", endpoint(2))
		restart()
	})
	attempts := conn.since(start)
	time.Sleep(most)
	known(2)

	perSecond := float64(len(attempts)) / outageTime.Seconds()
	assert.LessOrEqual(t, perSecond, 0.2, "%d attempts", len(attempts))
	assert.GreaterOrEqual(t, len(attempts), int(outageTime/most), "it did go on trying")
	checkGaps(t, attempts, most)
	assert.Equal(t, len(attempts)+1, errs, "each failure is news")

	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.Len(t, lines, 2, log.String())
	assert.Contains(t, lines[0], "level=WARN")
	assert.Contains(t, lines[0], "target=web")
	assert.Contains(t, lines[1], "level=INFO")
	assert.Contains(t, lines[1], "recovered")
	assert.Contains(t, lines[1], fmt.Sprint("failures=", errs))
}

// checkGaps holds the time between attempts to min(Min·2ⁿ, Max), and a tenth.
// The first is from the break of the stream. An attempt itself may take a
// moment, if it has to dial.
func checkGaps(t *testing.T, attempts []time.Duration, most time.Duration) {
	t.Helper()
	want, last := 100*time.Millisecond, time.Duration(0)
	for n, at := range attempts {
		gap := at - last
		assert.GreaterOrEqual(t, gap, want, "attempt %d", n)
		assert.LessOrEqual(t, gap, min(want+want/10, most)+time.Second, "attempt %d", n)
		want, last = min(2*want, most), at
	}
}

func TestLogCleanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		var log bytes.Buffer
		once := play{[]*destination.Update{noEndpoints(true)}, nil}
		m.start(t, plays(once, once, once))
		info := slog.New(slog.NewTextHandler(&log, nil))
		listen(t, New(m.connect(t), steady, WithLogger(info)))
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "cannot be resolved")
		assert.Contains(t, lines[0], "not a service")
	})
}

func TestLogOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		var log bytes.Buffer
		lost := status.Error(codes.Internal, "lost")
		up := []*destination.Update{noEndpoints(true)}
		m.start(t, plays(play{up, lost}, play{nil, lost}, play{nil, nil}, play{up, lost}, play{up, nil}))
		debug := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		listen(t, New(m.connect(t), steady, WithLogger(debug)))
		var levels []string
		for line := range strings.Lines(log.String()) {
			_, after, _ := strings.Cut(line, "level=")
			level, _, _ := strings.Cut(after, " ")
			levels = append(levels, level)
		}
		assert.Equal(t, []string{
			"WARN", "DEBUG", "DEBUG", "INFO", // lost, lost again, ended, back
			"WARN", "INFO", // lost, back
			"DEBUG", "WARN", // ended, unresolvable
		}, levels)
		assert.Contains(t, log.String(), "recovered\" target=web:80 failures=2")
	})
}

// Streams that end cleanly without an update are an outage. The end of a stream at a
// limit is not.
func TestLogStreamsWithoutUpdate(t *testing.T) {
	for name, tt := range map[string]struct {
		get  func(*destination.GetDestination, getStream) error
		want []string
	}{
		"ended": {func(*destination.GetDestination, getStream) error { return nil }, []string{"level=WARN"}},
		"a remove, and ended": {func(_ *destination.GetDestination, to getStream) error {
			return to.Send(removeMessage(tcp(addr1)))
		}, []string{"level=WARN"}},
		"a limit": {repeats(nil, 0), nil},
		"brought": {func(_ *destination.GetDestination, to getStream) error { return to.Send(noEndpoints(true)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				var log bytes.Buffer
				m.start(t, tt.get)
				r := New(m.connect(t), WithStreamLimits(Limits{Initial: -1}), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				follow(t, r, 3*time.Hour, 0)
				lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
				require.Len(t, lines, max(1, len(tt.want)), log.String())
				for i, want := range tt.want {
					assert.Contains(t, lines[i], want)
				}
				assert.Equal(t, len(tt.want) == 0, log.Len() == 0, log.String())
			})
		})
	}
}

// Ignored parts of messages are logged once for all streams.
func TestLogIgnoredParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		var log bytes.Buffer
		set := addMessage(tcp(addr1), nowhere)
		set.GetAdd().Addrs[0].TlsIdentity = uriIdentity("spiffe://root/ns/web")
		m.start(t, repeats(set, time.Minute))
		r := New(m.connect(t), WithStreamLimits(Limits{}), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.Greater(t, follow(t, r, 10*time.Hour, 0).sets, 5)
		lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		require.Len(t, lines, 2, log.String())
		assert.Contains(t, lines[0], `level=WARN msg="part of a destination is ignored" target=web`)
		assert.Contains(t, lines[0], "endpoint 10.0.0.1:80: TLS identity")
		assert.Contains(t, lines[1], "endpoint: no IP address")
	})
}

func TestLogNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		m.start(t, plays(play{nil, status.Error(codes.Internal, "lost")}))
		listen(t, New(m.connect(t), steady, WithLogger(nil)))
	})
}
