package profiles_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer: net/http exports none
	"golang.org/x/net/http2/hpack" //nolint:depguard // for the Framer

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// C7 of the integration tests of linkerd's proxy: the flow-control window of the connection
// grows again after a retry or the caller closes a response early.
func TestRetryReturnsConnectionWindow(t *testing.T) {
	const size, requests = 48 << 10, 60
	p := &profiles.Profile{
		Routes:      []profiles.Route{{Name: "all", Match: profiles.All{}, Retry: &profiles.Retry{Max: 1}}},
		RetryBudget: &profiles.RetryBudget{Ratio: 1, MinPerSecond: 1000, TTL: 10 * time.Second},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &endless{body: bytes.Repeat([]byte("x"), size)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.serve(t, l)
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	r := newRouterOver(t, profiles.Config{}, p, func(ctx context.Context) httplayer.Service {
		return httplayer.NewEndpoint(ctx, l.Addr().String(), httplayer.WithHTTP2())
	})
	for range requests {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web/", http.NoBody)
		require.NoError(t, err)
		req.ProtoMajor, req.ProtoMinor = 2, 0
		rsp, err := r.Call(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
		require.NoError(t, rsp.Body.Close()) // unread
	}
	require.EqualValues(t, 2*requests, server.answered.Load())
	// The client returns it in pieces of a quarter of the connection window.
	require.Eventually(t, func() bool {
		return server.returned.Load() > 2*requests*size-512<<10
	}, 20*time.Second, time.Millisecond, "%d bytes came back", server.returned.Load())
}

// endless answers each stream of a connection with a 503 and a body that does
// not end, and sums up what the client gives back of the connection's window.
type endless struct {
	body               []byte
	answered, returned atomic.Int64
}

func (f *endless) serve(t *testing.T, l net.Listener) {
	conn, err := l.Accept()
	if !assert.NoError(t, err) {
		return
	}
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	assert.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	assert.NoError(t, framer.WriteSettings())
	granted := false // what the client gives to begin with
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				assert.NoError(t, framer.WriteSettingsAck())
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 && granted {
				f.returned.Add(int64(frame.Increment))
			}
			granted = granted || frame.StreamID == 0
		case *http2.HeadersFrame:
			// Before its answer: the client may be done with it before all of it is written.
			f.answered.Add(1)
			if f.answer(framer, frame.StreamID) != nil {
				return // the test is over
			}
		}
	}
}

func (f *endless) answer(framer *http2.Framer, stream uint32) error {
	var head bytes.Buffer
	if err := hpack.NewEncoder(&head).WriteField(hpack.HeaderField{Name: ":status", Value: "503"}); err != nil {
		return err
	}
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true})
	for rest := f.body; err == nil && len(rest) > 0; {
		n := min(len(rest), 16<<10)
		err = framer.WriteData(stream, false, rest[:n])
		rest = rest[n:]
	}
	return err
}
