package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// rude serves tap, and ends each stream with control characters of a terminal.
type rude struct {
	tappb.UnimplementedTapServer

	probed bool // it ends that which asks whether it serves tap as well
	ended  sync.Once
	done   chan struct{}
}

const rudeness = "\x1b]0;pwned\x07 \u202e\ntapctl: all is well"

func (r *rude) Watch(req *tappb.WatchRequest, _ grpc.ServerStreamingServer[tappb.WatchResponse]) error {
	if req.GetSample() == -1 && !r.probed {
		return status.Error(codes.InvalidArgument, "as it should be")
	}
	r.ended.Do(func() { close(r.done) })
	return status.Error(codes.Internal, rudeness)
}

func newRude(t *testing.T, probed bool) (r *rude, addr string) {
	t.Helper()
	r = &rude{probed: probed, done: make(chan struct{})}
	return r, newTapped(t, func(to *grpc.Server, _ *tap.Registry) { tappb.RegisterTapServer(to, r) }).addr
}

func requirePrintable(t *testing.T, s string) {
	t.Helper()
	for _, c := range s {
		require.True(t, c == '\n' || unicode.IsPrint(c), "%q in %q", c, s)
	}
	require.Contains(t, s, `\x1b]0;pwned\a \u202e\ntapctl: all is well`)
	require.NotContains(t, s, "\ntapctl: all is well")
}

// Control characters in the error of a process are escaped.
func TestErrorTextEscaped(t *testing.T) {
	t.Run("warning", func(t *testing.T) {
		r, addr := newRude(t, false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stderr safe
		done := make(chan error, 1)
		go func() { done <- run(ctx, []string{"tap", addr}, nil, &stderr) }()
		require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "pwned") }, 30*time.Second, 5*time.Millisecond)
		<-r.done
		cancel()
		require.NoError(t, <-done)
		requirePrintable(t, stderr.String())
	})
	t.Run("at the end", func(t *testing.T) {
		var addrs []string
		for range 2 {
			_, addr := newRude(t, true)
			addrs = append(addrs, addr)
		}
		err := run(t.Context(), append([]string{"tap"}, addrs...), nil, new(safe))
		require.ErrorContains(t, err, "code = Internal")
		var stderr bytes.Buffer
		require.Equal(t, 1, report(&stderr, err))
		requirePrintable(t, stderr.String())
		require.Equal(t, 2, strings.Count(stderr.String(), "\n"), "a line for each of both")
	})
	t.Run("usage error and warning", func(t *testing.T) {
		var stderr bytes.Buffer
		require.Equal(t, exitUsage, report(&stderr, usageError{fmt.Errorf("%s", rudeness)}))
		warner(&stderr)(errors.New(rudeness))
		for _, c := range stderr.String() {
			require.True(t, c == '\n' || unicode.IsPrint(c), "%q", c)
		}
	})
}

// counting records the rate that each request specifies.
type counting struct {
	tappb.UnimplementedTapServer

	maxRPS chan uint32
}

func (c counting) Watch(req *tappb.WatchRequest, _ grpc.ServerStreamingServer[tappb.WatchResponse]) error {
	if req.GetSample() != -1 {
		c.maxRPS <- req.GetMaxRps()
	}
	return status.Error(codes.InvalidArgument, "as it should be")
}

// A rate above the largest possible rate is lowered to it.
func TestMaxRPSBounded(t *testing.T) {
	c := counting{maxRPS: make(chan uint32, 10)}
	addr := newTapped(t, func(to *grpc.Server, _ *tap.Registry) { tappb.RegisterTapServer(to, c) }).addr
	for given, want := range map[string]uint32{"7": 7, "4294967296": math.MaxInt32, "8589934592": math.MaxInt32} {
		require.ErrorContains(t, run(t.Context(), []string{"tap", "--max-rps", given, addr}, nil, new(safe)), "as it should be")
		require.Equal(t, want, <-c.maxRPS, given)
	}
}
