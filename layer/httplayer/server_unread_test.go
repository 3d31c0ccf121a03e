package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// An unread body that does not arrive delays neither the response nor the end of a drain.
func TestServerRespondsDuringStalledBody(t *testing.T) {
	t.Parallel()
	refusals := map[string]http.Handler{
		"error": Handler(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
			return nil, &layer.Error{Layer: "router", Kind: layer.ErrNoRoute}
		})),
		"handler": http.NotFoundHandler(),
		// These begin the answer, and net/http reads before that, while they run.
		"long": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			say(w, strings.Repeat("x", 10_000))
		}),
		"flushed": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			flush(w)
		}),
	}
	for name, h := range refusals {
		for how, body := range map[string]string{
			"length": "Content-Length: 1000\r\n\r\nx", "chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", "nothing": "Content-Length: 1000\r\n\r\n",
		} {
			for _, drained := range []bool{false, true} {
				t.Run(name+" "+how, func(t *testing.T) {
					t.Parallel()
					entered := make(chan struct{}, 1)
					front := servingBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						entered <- struct{}{}
						h.ServeHTTP(w, r)
					}), WithMinBodyRate(200*time.Millisecond, 0))
					c := wireTo(t, front.addr)
					say(c, "POST / HTTP/1.1\r\nHost: web\r\n"+body)
					if drained {
						<-entered
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						require.NoError(t, front.Drain(ctx))
					}
					rsp, err := http.ReadResponse(c.in, nil)
					require.NoError(t, err)
					read(t, rsp)
					assert.Equal(t, http.StatusNotFound, rsp.StatusCode)
					_, err = c.in.ReadByte()
					require.ErrorIs(t, err, io.EOF, "the rest might be taken for a request")
				})
			}
		}
	}
}

// A client that reads slowly is served on the same connection, even if net/http has read
// its request body.
func TestServerSlowReaderWithUnreadBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := make(chan struct{})
		s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/first" {
				say(w, strings.Repeat("x", 10_000)) // so much begins the answer
				close(handled)
				return
			}
			time.Sleep(time.Second)
			if r.Context().Err() == nil {
				say(w, "still there")
			}
		}), WithMinBodyRate(time.Second, 0))
		conn, client := net.Pipe()
		defer client.Close()
		over := make(chan error, 1)
		go func() {
			_, err := s.Call(t.Context(), conn)
			over <- err
		}()
		sayf(client, "POST /first HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\nabc")
		all, piece := "", make([]byte, 100)
		for returned := false; !returned; {
			synctest.Wait()
			select {
			case <-handled:
				returned = true // and the end of the answer is being written
			default:
				n, err := client.Read(piece)
				require.NoError(t, err)
				all += string(piece[:n])
			}
		}
		time.Sleep(time.Minute)
		for !strings.HasSuffix(all, "\r\n0\r\n\r\n") && strings.Count(all, "x") < 10_000 {
			n, err := client.Read(piece)
			require.NoError(t, err)
			all += string(piece[:n])
		}
		if strings.Contains(all, "chunked") {
			for !strings.HasSuffix(all, "0\r\n\r\n") {
				n, err := client.Read(piece)
				require.NoError(t, err)
				all += string(piece[:n])
			}
		}
		require.NotContains(t, all, "Connection: close")
		sayf(client, "GET /second HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
		rest, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Contains(t, string(rest), "still there")
		<-over
	})
}

// An unread body that arrives in time affects neither the response nor the connection.
func TestServerReadsUnreadBodyInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			flush(w)
			time.Sleep(time.Minute)
			assert.NoError(t, r.Context().Err())
			say(w, r.URL.Path)
		}), WithMinBodyRate(time.Second, 0))
		conn, client := net.Pipe()
		over := make(chan error, 1)
		go func() {
			_, err := s.Call(t.Context(), conn)
			over <- err
		}()
		in := bufio.NewReader(client)
		for _, path := range []string{"/first", "/second"} {
			sayf(client, "POST %s HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\na", path)
			time.Sleep(900 * time.Millisecond)
			go say(client, "bc")
			rsp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			assert.Equal(t, path, read(t, rsp))
			assert.False(t, rsp.Close)
		}
		client.Close()
		<-over
	})
}
