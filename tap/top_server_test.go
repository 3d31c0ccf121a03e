package tap

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// often is a TopRequest for tests with a real clock.
func often() *tappb.TopRequest { return &tappb.TopRequest{Every: durationpb.New(leastEvery)} }

func TestTopOverGRPC(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(new(Registry)))
	svc := stand(l.reg, respond("x"))
	conn := l.dial(t)
	stream, err := tappb.NewTapClient(conn).Top(t.Context(), often())
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	send(t, svc, get("/api")) // counted after the headers
	m := new(tappb.TopResponse)
	for len(m.GetRows()) == 0 {
		m, err = stream.Recv()
		require.NoError(t, err)
	}
	require.Len(t, m.GetRows(), 1)
	require.Equal(t, "/api", m.GetRows()[0].GetPath())

	n := 0
	for m, err := range Top(t.Context(), conn, often()) {
		require.NoError(t, err)
		if n++; n == 1 {
			require.Empty(t, m.GetRows())
			send(t, svc, get("/api"))
			continue
		}
		if len(m.GetRows()) == 0 {
			continue // it was on its way before the request
		}
		require.EqualValues(t, 1, m.GetRows()[0].GetCount())
		break
	}
}

func TestTopOverGRPCEnds(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(new(Registry)))
	gone := func() bool { return l.reg.active.Load() == nil }
	t.Run("when the client leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last error
		for _, err := range Top(ctx, l.dial(t), often()) {
			last = err
			cancel()
		}
		require.ErrorIs(t, last, context.Canceled)
		require.Eventually(t, gone, 20*time.Second, time.Millisecond)
	})
	t.Run("when the server shuts down", func(t *testing.T) {
		var last error
		for _, err := range Top(t.Context(), l.dial(t), often()) {
			last = err
			l.srv.Shutdown()
		}
		require.Equal(t, codes.Unavailable, status.Code(last))
		require.Eventually(t, gone, 20*time.Second, time.Millisecond)
	})
}

func TestTopOverGRPCRejects(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(NewRegistry(WithCapacity(1, 0))))
	conn := l.dial(t)
	refusal := func(req *tappb.TopRequest) codes.Code {
		var code codes.Code
		for m, err := range Top(t.Context(), conn, req) {
			require.Nil(t, m)
			code = status.Code(err)
		}
		return code
	}
	require.Equal(t, codes.InvalidArgument, refusal(&tappb.TopRequest{Every: durationpb.New(1)}))
	require.Equal(t, codes.InvalidArgument, refusal(&tappb.TopRequest{Match: match.Method("")}))
	watchAll(t, l.reg)
	require.Equal(t, codes.ResourceExhausted, refusal(nil))
	err := gotowerTap{server: NewServer(nil)}.Top(nil, foreign{ctx: t.Context()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}
