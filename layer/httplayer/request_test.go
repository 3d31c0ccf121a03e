package httplayer

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// endless is a body that is always there.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A time limit that ends a request while its body is awaited does not count as a failure of
// the endpoint. Otherwise clients with slow uploads would eject healthy endpoints.
func TestEndpointDeadlineDuringBodyWait(t *testing.T) {
	limited := map[string]layer.Stack[*http.Request, *http.Response]{
		"timeout":                 NewStack().Timeout(time.Second),
		"response header timeout": NewStack().ResponseHeaderTimeout(time.Second),
		"per try":                 NewStack().Retry(RetryPolicy{MaxAttempts: 1, AttemptTimeout: time.Second}),
	}
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, stack := range limited {
			for path, failed := range map[string]bool{
				"/reads": false, "/reads/all": true, "/ignores": true, "/talks": true, "/talks/grpc": true,
			} {
				if name != "timeout" && path != "/reads/all" && path != "/ignores" {
					continue // the limit does not run while the body is awaited; see TestResponseHeaderTimeoutUpload
				}
				t.Run(name+path, func(t *testing.T) {
					bubble(t, func(t *testing.T, ctx context.Context) {
						h := newHost(ctx, 0)
						h.srv.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
							if path != "/ignores" {
								_, _ = io.Copy(io.Discard, r.Body)
							}
							select { // over HTTP/1.1 the server detects the disconnect only in a read
							case <-r.Context().Done():
							case <-ctx.Done():
							}
						})
						body, client := io.Pipe()
						switch path {
						case "/reads", "/talks", "/talks/grpc":
							go client.Write([]byte("a piece"))
						case "/reads/all":
							go func() {
								_, _ = client.Write([]byte("all"))
								_ = client.Close()
							}()
						case "/ignores":
							go io.Copy(client, endless{})
						}
						req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://web"+path, body)
						require.NoError(t, err)
						switch path {
						case "/talks":
							req.ProtoMajor, req.ContentLength = 2, -1
						case "/talks/grpc":
							req.ProtoMajor, req.ContentLength = 2, 100
							req.Header.Set("Content-Type", "application/grpc")
						}
						var below error
						e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))
						_, err = stack.Service(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
							rsp, err := e.Call(ctx, r)
							below = err
							return rsp, err
						})).Call(ctx, req)
						require.Error(t, err)
						class := Classify(layer.Outcome[*http.Response]{Err: below})
						assert.Equal(t, failed, class.IsFailure(), "%v: %v", class, below)
						status, _ := StatusFromError(err)
						assert.Equal(t, http.StatusGatewayTimeout, status, err)
					})
				})
			}
		}
	})
}

// A limit on the response headers does not run while the client sends the body. It starts again with
// each piece, and ends a request whose server does not accept a piece or does not respond.
func TestResponseHeaderTimeoutUpload(t *testing.T) {
	type outcome struct {
		after time.Duration
		fails bool
	}
	perTry := NewStack().Retry(RetryPolicy{MaxAttempts: 1, AttemptTimeout: time.Second})
	header := layer.ResponseHeaderTimeout[*http.Request, *http.Response]
	after := layer.WithoutUploadTime[*http.Response]()
	limit := func(*http.Request) (time.Duration, bool) { return time.Second, true }
	stacks := map[string]layer.Stack[*http.Request, *http.Response]{
		"header":  NewStack().ResponseHeaderTimeout(time.Second),
		"per try": perTry,
		"both":    NewStack().ResponseHeaderTimeout(time.Second).With("record", recordInContext).Retry(RetryPolicy{AttemptTimeout: time.Second}),
		"whole":   NewStack().With("limit", layer.Timeout[*http.Request](time.Second, after)),
		"asked":   NewStack().With("limit", layer.DeadlineFromRequest(limit, after)),
		"upload":  NewStack().With("limit", header(time.Second, layer.WithUploadTime[*http.Response]())),
	}
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, stack := range stacks {
			for path, want := range map[string]outcome{
				"/responds": {80 * time.Second, false}, // 20 pauses of 4 s
				"/hangs":    {81 * time.Second, true},  // 1 s after the end of the body
				"/ignores":  {time.Second, true},       // 1 s after the last accepted piece
			} {
				if name == "upload" {
					want = outcome{time.Second, true}
				}
				t.Run(name+path, func(t *testing.T) {
					bubble(t, func(t *testing.T, ctx context.Context) {
						h := newHost(ctx, 0)
						h.srv.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
							if path != "/ignores" {
								_, _ = io.Copy(io.Discard, r.Body)
							}
							if path != "/responds" {
								<-ctx.Done()
							}
						})
						body, client := io.Pipe()
						sent := make(chan struct{})
						go func() {
							defer close(sent)
							if path == "/ignores" {
								_, _ = io.Copy(client, endless{})
							}
							for i, err := 0, error(nil); i < 20 && err == nil; i++ {
								time.Sleep(4 * time.Second)
								_, err = client.Write([]byte("a piece"))
							}
							_ = client.Close()
						}()
						req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://web"+path, body)
						require.NoError(t, err)
						start := time.Now()
						rsp, err := stack.Service(NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))).Call(ctx, req)
						assert.Equal(t, want.after, time.Since(start))
						_ = body.Close()
						<-sent
						if want.fails {
							require.ErrorIs(t, err, layer.ErrTimeout)
							return
						}
						require.NoError(t, err)
						time.Sleep(time.Hour) // the limit has ended
						_, err = io.Copy(io.Discard, rsp.Body)
						require.NoError(t, err)
						require.NoError(t, rsp.Body.Close())
					})
				})
			}
		}
	})
}

// recordInContext is a layer between two limits, with a context of its own.
func recordInContext(next Service) Service {
	return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		ctx, _ = layer.WithRecord(context.WithValue(ctx, contextKey{}, 1))
		return next.Call(ctx, r)
	})
}

type contextKey struct{}

// A limit on the response headers starts again whenever the server accepts bytes of the request body, and
// with its end, although no piece of the body is read meanwhile.
func TestResponseHeaderTimeoutSlowServer(t *testing.T) {
	const size, step = 20 << 10, 1 << 10
	for name, stalls := range map[string]bool{"accepts": false, "stalls": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				ctx, cancel := context.WithCancel(ctx)
				var server sync.WaitGroup
				defer server.Wait()
				defer cancel()
				dial := func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					server.Go(func() { slowServer(ctx, far, size, step, stalls) })
					return near, nil
				}
				req := request(t, http.MethodPost, "http://web/", strings.Repeat("x", size))
				start := time.Now()
				rsp, err := NewStack().ResponseHeaderTimeout(time.Second).
					Service(NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(dial))).Call(ctx, req)
				if stalls {
					require.ErrorIs(t, err, layer.ErrTimeout)
					assert.Equal(t, 10*time.Second, time.Since(start)) // the last bytes are accepted after 9 s
					return
				}
				require.NoError(t, err)
				assert.Equal(t, 18*time.Second, time.Since(start))
				assert.Equal(t, "hello", read(t, rsp))
			})
		})
	}
}

// slowServer increases the window of a stream by step bytes every 0.9 s, and responds to its end after that
// time. If stalls is true, it increases it for half of the body only.
func slowServer(ctx context.Context, conn net.Conn, size, step int, stalls bool) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := newRawH2(conn)
	if c.preface() != nil {
		return
	}
	frames := make(chan int)
	go func() { // a pipe blocks a client that sends while the server does not read
		defer close(frames)
		for {
			kind, _, _, payload, err := c.next()
			switch {
			case err != nil:
				return
			case kind == frameData:
				frames <- len(payload)
			case kind == frameHeaders:
				frames <- 0
			}
		}
	}()
	window := binary.BigEndian.AppendUint32([]byte{0, 0x4}, uint32(step))
	c.frame(frameSettings, 0, 0, window)
	for got := 0; got < size; {
		n, ok := <-frames
		if got += n; !ok {
			return
		}
		if n == 0 || stalls && got > size/2 {
			continue
		}
		time.Sleep(900 * time.Millisecond)
		if got < size {
			c.frame(frameWindowUpdate, 0, 1, binary.BigEndian.AppendUint32(nil, uint32(step)))
		} else {
			c.respond(1, "hello")
		}
	}
	for range frames {
	}
}

// A body with another length than its Content-Length is not a failure of the endpoint.
func TestEndpointRequestBodyLength(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			<-r.Context().Done() // a response could arrive before the error of the request
		}
	}))
	for name, opts := range map[string][]EndpointOption{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		for what, length := range map[string]int64{"short": 10, "long": 2} {
			t.Run(name+" "+what, func(t *testing.T) {
				e := endpoint(t, addr, opts...)
				req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/", io.NopCloser(strings.NewReader("half")))
				require.NoError(t, err)
				req.ContentLength = length
				_, err = e.Call(t.Context(), req)
				require.Error(t, err)
				require.Equal(t, layer.Ignorable, Classify(layer.Outcome[*http.Response]{Err: err}))
			})
		}
	}
}
