package httplayer

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A request body that fails is not a failure of the endpoint. The request is not sent
// elsewhere, and no circuit breaker counts it.
func TestEndpointBrokenRequestBody(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	for name, opts := range map[string][]EndpointOption{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, opts...)
			broken := errors.New("the upload broke off")
			body := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))
			req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/", io.NopCloser(body))
			require.NoError(t, err)
			_, err = e.Call(t.Context(), req)
			require.ErrorIs(t, err, broken)
			require.Equal(t, layer.Ignorable, Classify(layer.Outcome[*http.Response]{Err: err}))
		})
	}
}

// A server that closes the connection during the request body is a failure of the endpoint.
func TestEndpointServerClosesInRequestBody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveRaw(t, l, func(_ int, conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		conn.Close()
	})
	e := endpoint(t, l.Addr().String())
	reader, writer := io.Pipe()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for {
			if _, err := writer.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}()
	req, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String()+"/", reader)
	require.NoError(t, err)
	_, err = e.Call(t.Context(), req)
	require.Error(t, err)
	require.Equal(t, layer.Retryable, Classify(layer.Outcome[*http.Response]{Err: err}))
	<-wrote
}

// A connection that has rejected a request does not touch its body any more, because another
// endpoint sends it.
func TestRequestBodyHandedBack(t *testing.T) {
	for _, closed := range []bool{false, true} {
		inner := &asked{Reader: strings.NewReader("hello")}
		body := newRequestBody(&http.Request{Body: inner}, repeatLimit)
		attempt := body.begin(nil)
		if closed {
			require.NoError(t, attempt.Close())
		}
		require.True(t, body.handBack())
		_, err := attempt.Read(make([]byte, 1)) // of a goroutine that began before
		require.Equal(t, http.ErrBodyReadAfterClose, err)
		require.NoError(t, attempt.Close())
		require.Zero(t, inner.reads.Load())
		require.Zero(t, inner.closes.Load())
	}
}

// A body that was lent is unread after it was handed back, also if a Read of a former attempt returns
// later.
func TestRequestBodyLent(t *testing.T) {
	for name, get := range map[string]bool{"kept": false, "GetBody": true} {
		t.Run(name, func(t *testing.T) {
			source := &twoParts{parts: []string{"first", "second"}, next: make(chan struct{})}
			req := &http.Request{Body: source}
			if get {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("firstsecond")), nil }
			}
			lendBody(req)
			body := lentBody(req)
			require.NotNil(t, body)
			var reads sync.WaitGroup
			for range 2 {
				attempt := body.begin(nil)
				n, err := io.ReadFull(attempt, make([]byte, 5))
				require.NoError(t, err)
				require.Equal(t, 5, n)
				reads.Go(func() {
					_, _ = attempt.Read(make([]byte, 10))
				})
				if !get {
					require.Eventually(t, func() bool { return source.read.Load() == 2 }, patience, time.Millisecond)
				}
				require.True(t, body.handBack())
				require.NoError(t, attempt.Close())
			}
			close(source.next)
			all, err := io.ReadAll(req.Body)
			require.NoError(t, err)
			require.Equal(t, "firstsecond", string(all))
			require.NoError(t, req.Body.Close())
			reads.Wait()
		})
	}
}

// A body that was handed back and is closed without being read keeps no bytes, also if a Read of a former
// attempt returns later.
func TestRequestBodyLentAndClosed(t *testing.T) {
	source := &twoParts{parts: []string{"first", "second"}, next: make(chan struct{})}
	req := &http.Request{Body: source}
	lendBody(req)
	body := lentBody(req)
	attempt := body.begin(nil)
	_, err := io.ReadFull(attempt, make([]byte, 5))
	require.NoError(t, err)
	var read sync.WaitGroup
	read.Go(func() { _, _ = attempt.Read(make([]byte, 10)) })
	require.Eventually(t, func() bool { return source.read.Load() == 2 }, patience, time.Millisecond)
	require.True(t, body.handBack())
	require.NoError(t, req.Body.Close())
	require.Zero(t, body.kept.n)
	close(source.next)
	read.Wait()
	require.Zero(t, body.kept.n)
}
