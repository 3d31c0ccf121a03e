package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Trailers come with the end of a body: those that are stripped do not.
func TestTrailersAreStripped(t *testing.T) {
	for name, l := range map[string]layer.Layer[*http.Request, *http.Response]{
		"strip":     StripHeader("l5d-client-id", "x-asked"),
		"client id": ClientID(func(*http.Request) string { return "" }),
		"both":      NewStack().With("id", ClientID(func(*http.Request) string { return "web.id" })).With("strip", StripHeader("x-asked")).Layer(),
	} {
		t.Run(name, func(t *testing.T) {
			came := http.Header{"L5d-Client-Id": nil, "X-Sum": nil} // as they are announced
			req, err := http.NewRequest(http.MethodPost, "http://web/", strings.NewReader("hello"))
			require.NoError(t, err)
			req.Trailer, req.Body = came, &trailing{req.Body, func() {
				came["L5d-Client-Id"], came["X-Sum"], came["X-More"] = []string{"root"}, []string{"1"}, []string{"2"}
			}}
			_, err = l(serviceFunc(func(_ context.Context, out *http.Request) (*http.Response, error) {
				require.Equal(t, http.Header{"X-Sum": nil}, out.Trailer, "what is announced")
				body, err := io.ReadAll(out.Body)
				require.NoError(t, err)
				require.Equal(t, "hello", string(body))
				require.Equal(t, http.Header{"X-Sum": {"1"}, "X-More": {"2"}}, out.Trailer)
				return &http.Response{StatusCode: http.StatusOK}, out.Body.Close()
			})).Call(t.Context(), req)
			require.NoError(t, err)
			require.Contains(t, req.Trailer, "L5d-Client-Id", "a request is not changed")
		})
	}
}

// trailing is a body that calls end before it says that it ends.
type trailing struct {
	io.ReadCloser
	end func()
}

func (e *trailing) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil {
		e.end()
	}
	return n, err
}

// The server writes trailers while one try reads the body, and the next begins: so
// each has its own.
func TestTriesHaveTheirOwnTrailers(t *testing.T) {
	came := http.Header{"X-A": nil, "X-B": nil}
	req, err := http.NewRequest(http.MethodPut, "http://web/", io.NopCloser(strings.NewReader("hello")))
	require.NoError(t, err)
	req.Trailer, req.Body = came, &trailing{req.Body, func() { came["X-A"], came["X-B"] = []string{"a"}, []string{"b"} }}
	tries := Replayer{}.Replay(req, 1000)
	defer tries.End()
	strip := StripHeader("x-a")
	next := func() (*http.Request, *http.Request) {
		try, ok := tries.Next()
		require.True(t, ok)
		var got *http.Request
		_, err := strip(serviceFunc(func(_ context.Context, req *http.Request) (*http.Response, error) {
			got = req
			return nil, io.ErrUnexpectedEOF
		})).Call(t.Context(), try)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		return try, got
	}
	for range 2 {
		try, got := next()
		try.Trailer["X-C"] = nil
		require.NotContains(t, came, "X-C")
		require.Equal(t, http.Header{"X-B": nil}, got.Trailer)
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
		require.Equal(t, []string{"b"}, got.Trailer["X-B"])
		require.NotContains(t, got.Trailer, "X-A")
	}
}
