package outbound

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// side is the client for one version. It counts calls.
type side struct {
	ready  error
	called int
}

func (s *side) Ready(context.Context) error { return s.ready }

func (s *side) Call(context.Context, *http.Request) (*http.Response, error) {
	s.called++
	return &http.Response{StatusCode: http.StatusOK}, nil
}

// byVersion keeps a request's version, except for methods that only HTTP/1 has. Ready waits for the
// versions that are in use.
func TestByVersion(t *testing.T) {
	h1, h2 := &side{ready: errors.New("no HTTP/1")}, &side{}
	b := &byVersion{h1: version{svc: h1}, h2: version{svc: h2}}
	require.NoError(t, b.Ready(t.Context()), "no version is in use")
	require.Empty(t, b.Describe().Children)
	ask := func(method string, major int, fields ...string) {
		req := &http.Request{Method: method, ProtoMajor: major, Header: http.Header{}}
		for _, f := range fields {
			req.Header.Set(f, "x")
		}
		_, err := b.Call(t.Context(), req)
		require.NoError(t, err)
	}
	ask(http.MethodGet, 2)
	require.NoError(t, b.Ready(t.Context()))
	require.Equal(t, 1, h2.called)
	ask(http.MethodGet, 1)
	ask(http.MethodGet, 1, "Upgrade")
	ask(http.MethodGet, 2, "Upgrade")
	ask(http.MethodConnect, 2)
	require.Equal(t, 4, h1.called)
	require.Equal(t, 1, h2.called)
	require.ErrorIs(t, b.Ready(t.Context()), h1.ready)
	require.Len(t, b.Describe().Children, 2)
	h1.ready, h2.ready = nil, errors.New("no HTTP/2")
	require.ErrorIs(t, b.Ready(t.Context()), h2.ready)
}
