package httplayer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// everything is a client's stack with all there is in it.
func everything(budget *layer.Budget) layer.Stack[*http.Request, *http.Response] {
	return NewStack().
		Drain(layer.NewDrainer()).
		Timeout(time.Minute).
		Retry(policy{Budget: budget, AttemptTimeout: patience, Backoff: layer.Backoff{Min: time.Millisecond, Max: time.Millisecond}}).
		Queue(100, patience).
		ResponseHeaderTimeout(patience).
		IdleTimeout(patience).
		Hedge(HedgePolicy{Budget: budget, MinSamples: 10}).
		Breaker(layer.BreakerPolicy{}).
		RateLimit(1e6, 1e6).
		Limit(50)
}

func wanderer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stall":
		stalls(w, r)
	case "/moved":
		http.Redirect(w, r, "/echo", http.StatusTemporaryRedirect)
	case "/again":
		http.Redirect(w, r, "/again", http.StatusFound)
	default:
		w.Header().Set("Trailer", "Sum")
		echoes(w, r)
		w.Header().Set("Sum", "1")
	}
}

func TestE2EClientAllLayers(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		budget := layer.NewBudget(0, 0, 0)
		svc := everything(budget).Service(spread{endpoint(t, serve(t, http.HandlerFunc(wanderer)), protocol)})
		c := &http.Client{Transport: RoundTripper(svc)}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					rsp, err := c.Post("http://web/echo", "text/plain", strings.NewReader(strings.Repeat("x", 10_000)))
					if !assert.NoError(t, err) {
						return
					}
					b, err := io.ReadAll(rsp.Body)
					assert.NoError(t, err)
					assert.Len(t, b, 10_000)
					assert.NoError(t, rsp.Body.Close())
					assert.Equal(t, "1", rsp.Trailer.Get("Sum"))
				}
			})
		}
		all.Wait()
		rsp, err := c.Post("http://web/moved", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp), "sent again to where it was redirected, by GetBody")
		assert.Equal(t, "/echo", rsp.Request.URL.Path)
		_, err = c.Get("http://web/again")
		assert.ErrorContains(t, err, "stopped after 10 redirects")
	})
}

func TestE2EClientTimeout(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(stalls)
		svc := everything(nil).Service(spread{NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))})
		c := &http.Client{Transport: RoundTripper(svc), Timeout: 50 * time.Millisecond}
		_, err := c.Get("http://web/")
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		c.Timeout = 2 * time.Second // it covers the connecting too
		rsp, err := c.Get("http://web/body")
		require.NoError(t, err)
		_, err = io.ReadAll(rsp.Body)
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		rsp.Body.Close()
	})
}

func TestE2EClientCancels(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		ctx, cancel := context.WithCancelCause(t.Context())
		svc := everything(nil).Service(spread{endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel(errors.New("changed my mind"))
			<-r.Context().Done()
		})), protocol)})
		req := request(t, http.MethodGet, "http://web/", "").WithContext(ctx)
		_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
		require.Error(t, err)
		assert.ErrorContains(t, err, "changed my mind")
		assert.NotErrorIs(t, err, layer.ErrNotReady)
	})
}

// A client sends the same Host as one of net/http, or an error if that one has an error.
func TestClientHostOfURL(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	peer := client(t, false)
	peer.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	for _, h2 := range []bool{false, true} {
		var opts []EndpointOption
		if h2 {
			opts = append(opts, WithHTTP2())
		}
		ours := &http.Client{Transport: RoundTripper(endpoint(t, addr, opts...))}
		for _, host := range []string{
			"bücher.example", "bücher.example:8080", "BÜCHER.example", "faß.example", "ü_b.example",
			"日本語.example", "日本語。example", //nolint:gosmopolitan // hosts
			"xn--bcher-kva.example", "A_b.example", "[::1]:81", "[fe80::1%25eth0]", "[fe80::1%25eth0]:81", "b\xffcher.example", "é%25", "☃.net",
			strings.Repeat("ü", 70) + ".example",
		} {
			seen := func(c *http.Client, set string) string {
				req := request(t, http.MethodGet, "http://"+host+"/", "")
				req.Host = cmp.Or(set, req.Host)
				rsp, err := c.Do(req)
				if err != nil {
					return "error"
				}
				return read(t, rsp)
			}
			assert.Equal(t, seen(peer, ""), seen(ours, ""), "HTTP/2 %v: %q", h2, host)
			assert.Equal(t, seen(peer, "é.example:8"), seen(ours, "é.example:8"), "HTTP/2 %v: the field Host", h2)
		}
	}
}

// A gRPC server as a handler, behind a server's stack.
func TestE2EMiddlewareGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	outcomes := make(chan layer.Outcome[*http.Response], 10)
	c := grpcClient(t, serve(t, Middleware(watched(outcomes))(srv)))
	rsp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 100_000})
	require.NoError(t, err)
	assert.Len(t, rsp.GetPayload().GetBody(), 100_000)
	assert.Equal(t, layer.Success, Classify(<-outcomes))
	for code, class := range map[codes.Code]layer.Class{
		codes.Unavailable: layer.Retryable, codes.NotFound: layer.Success, codes.Internal: layer.Failure,
	} {
		_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(code), Message: "no"}})
		assert.Equal(t, code, status.Code(err))
		assert.Equal(t, class, Classify(<-outcomes), code)
	}
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{
			ResponseParameters: []*pb.ResponseParameters{{Size: int32(i)}}, Payload: payload(i),
		}))
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err) // the end
	assert.Equal(t, layer.Success, Classify(<-outcomes))
}

// A rejection by a rate limit has the time of the next attempt for a gRPC client.
func TestE2EMiddlewareRejectsGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	c := grpcClient(t, serve(t, Middleware(NewStack().RateLimit(1e-3, 1).Layer())(srv)))
	_, err := c.EmptyCall(t.Context(), &pb.Empty{})
	require.NoError(t, err)
	var trailer metadata.MD
	_, err = c.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Len(t, trailer["grpc-retry-pushback-ms"], 1)
}

// A proxy repeats a unary call if its policy permits this. The call has a trailers-only
// response, and its message was stored.
func TestE2ERetryGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "14")
		w.Header().Set("Grpc-Message", "away")
	}}
	leaf := spread{endpoint(t, serve(t, a)), endpoint(t, serve(t, srv))}
	may := policy{
		Backoff:  layer.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		CanRetry: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/UnaryCall") },
	}
	c := grpcClient(t, serve(t, Handler(NewStack().Retry(may).Service(leaf))))
	rsp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 1000, Payload: payload(1000)})
	require.NoError(t, err)
	assert.Len(t, rsp.GetPayload().GetBody(), 1000)
	assert.EqualValues(t, 1, a.n.Load())
	_, err = c.EmptyCall(t.Context(), &pb.Empty{})
	assert.Equal(t, codes.Unavailable, status.Code(err), "not that one")
	assert.Equal(t, "away", status.Convert(err).Message())
}

// The slower attempt is canceled. The body of the faster one can be read completely long after that
// (hedgedhttp#7: 3 965 bytes of 512 KiB).
func TestE2EHedge(t *testing.T) {
	whole := strings.Repeat("x", 512<<10)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		came, gone := make(chan struct{}), make(chan struct{})
		slow := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(came)
			<-r.Context().Done()
			close(gone)
		}))
		fast := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-came // the request that is canceled later
			say(w, whole)
		}))
		svc := NewStack().Hedge(HedgePolicy{MinDelay: 5 * time.Millisecond, MaxDelay: 5 * time.Millisecond}).
			Service(spread{endpoint(t, slow, protocol), endpoint(t, fast, protocol)})
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		select { // before the winner's body is read
		case <-gone:
		case <-time.After(patience):
			require.Fail(t, "the loser was not canceled")
		}
		assert.Len(t, read(t, rsp), len(whole))
	})
}

// Both attempts send the whole body.
func TestE2EHedgeBody(t *testing.T) {
	body := strings.Repeat("hello", 1000)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		bubble(t, func(t *testing.T, ctx context.Context) { // otherwise the delay may end before the body was read
			slow, fast := newHost(ctx, 0), newHost(ctx, 0)
			letGo, got := make(chan struct{}), make(chan int, 1)
			slow.srv.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got <- len(b)
				<-letGo
			})
			fast.srv.Handler = http.HandlerFunc(echoes)
			to := func(h *host) *Endpoint {
				return NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext), protocol)
			}
			svc := NewStack().Hedge(HedgePolicy{MinDelay: 20 * time.Millisecond, MaxDelay: 20 * time.Millisecond}).
				Service(spread{to(slow), to(fast)})
			rsp, err := svc.Call(ctx, request(t, http.MethodPut, "http://web/", body))
			require.NoError(t, err)
			assert.Equal(t, body, read(t, rsp))
			assert.Equal(t, len(body), <-got)
			close(letGo)
		})
	})
}

// A slow POST is not hedged.
func TestE2EHedgeExcludesPost(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		slow, b := newHost(ctx, 0), newHost(ctx, 0)
		slow.srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body) // net/http detects a closed connection only after the body was read
			select {
			case <-time.After(20 * time.Millisecond):
				say(w, "slow")
			case <-r.Context().Done():
			}
		})
		to := func(h *host) *Endpoint {
			return NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext))
		}
		svc := NewStack().Hedge(HedgePolicy{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}).Service(spread{to(slow), to(b)})
		rsp, err := svc.Call(ctx, request(t, http.MethodPost, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "slow", read(t, rsp))
		assert.Zero(t, b.served.Load())
		rsp, err = svc.Call(ctx, request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp), "a PUT would be")
		assert.EqualValues(t, 1, b.served.Load())
	})
}

// stalls sends a head, with /body a piece of a body, and then nothing.
func stalls(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/body" {
		say(w, "half of it")
		flush(w)
	}
	<-r.Context().Done()
}

func TestE2ETimeLimits(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		bubble(t, func(t *testing.T, ctx context.Context) {
			h := newHost(ctx, 0)
			h.srv.Handler = http.HandlerFunc(stalls)
			limits(t, NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext)))
		})
	})
}

func limits(t *testing.T, e *Endpoint) {
	t.Helper()
	const limit = 30 * time.Millisecond
	for name, tt := range map[string]struct {
		stack layer.Stack[*http.Request, *http.Response]
		path  string
		want  error
	}{
		"total, before the head": {NewStack().Timeout(limit), "/head", layer.ErrTimeout},
		"total, in the body":     {NewStack().Timeout(time.Second), "/body", layer.ErrTimeout},
		"head":                   {NewStack().ResponseHeaderTimeout(limit), "/head", layer.ErrResponseHeaderTimeout},
		"silence":                {NewStack().IdleTimeout(limit), "/body", layer.ErrIdleTimeout},
		"silence under others":   {NewStack().Timeout(time.Minute).Limit(1).IdleTimeout(limit).Limit(1), "/body", layer.ErrIdleTimeout},
	} {
		svc := tt.stack.Service(e)
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web"+tt.path, ""))
		if tt.path == "/body" {
			require.NoError(t, err, name)
			var b []byte
			b, err = io.ReadAll(rsp.Body)
			assert.Equal(t, "half of it", string(b), name)
			assert.NoError(t, rsp.Body.Close(), name)
		}
		assert.ErrorIs(t, err, tt.want, name)
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		status, _ := StatusFromError(err)
		assert.Equal(t, http.StatusGatewayTimeout, status, name)
	}
	// A head in time is not bounded after that.
	svc := NewStack().ResponseHeaderTimeout(time.Minute).Service(e)
	rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/body", ""))
	require.NoError(t, err)
	assert.NoError(t, rsp.Body.Close())
	synctest.Wait()
	assert.Equal(t, 0, e.Describe().State.Get("in_flight"))
}

func TestE2EBreaker(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		var well atomic.Bool
		server := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
			if !well.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
			say(w, "x")
		}}
		h.srv.Handler = server
		svc := NewStack().Breaker(layer.BreakerPolicy{
			ConsecutiveFailures: 3, Backoff: layer.Backoff{Min: time.Second, Max: time.Second},
		}).Service(NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext)))
		for range 3 {
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 500, rsp.StatusCode)
		}
		_, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.EqualValues(t, 3, server.n.Load(), "it is open")
		well.Store(true)
		require.NoError(t, svc.Ready(t.Context()), "until it is time for a probe")
		for range 3 {
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
		}
		assert.EqualValues(t, 6, server.n.Load(), "and after that it is closed")
	})
}

// A gRPC status in trailers opens the breaker, although the response has the status 200.
func TestE2EBreakerTrailers(t *testing.T) {
	svc := NewStack().Breaker(layer.BreakerPolicy{ConsecutiveFailures: 2, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}}).
		Service(endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			say(w, "message")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "14")
		})), WithHTTP2()))
	for range 2 {
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "x"))
		require.NoError(t, err)
		read(t, rsp)
	}
	_, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "x"))
	assert.ErrorIs(t, err, layer.ErrNotReady)
}

func TestE2EDrainWaitsForBodies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		letGo := make(chan struct{})
		d := layer.NewDrainer()
		svc := NewStack().Drain(d).Service(endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			flush(w)
			<-letGo
			say(w, "the rest")
		})), protocol))
		proxy := serve(t, Handler(svc))
		rsp, err := client(t, isH2(protocol)).Get("http://" + proxy)
		require.NoError(t, err)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, d.Drain(done), context.Canceled, "a body is open")
		assert.EqualValues(t, 1, d.InFlight())
		refused, err := client(t, false).Get("http://" + proxy)
		require.NoError(t, err)
		read(t, refused)
		assert.Equal(t, 503, refused.StatusCode)
		assert.True(t, refused.Close)
		close(letGo)
		assert.Equal(t, "the rest", read(t, rsp))
		assert.NoError(t, d.Drain(t.Context()))
	})
}

func isH2(opt EndpointOption) bool {
	return newEndpointOptions("", []EndpointOption{opt}).protocol == http2
}

// The slot of a response is released when its body is closed unread.
func TestE2ELimitAbandonedBodies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			say(w, strings.Repeat("x", 1<<20))
		})), protocol)
		svc := NewStack().Limit(1).Service(e)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			rsp, err := svc.Call(ctx, request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			_, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.ErrorIs(t, err, layer.ErrNotReady)
			cancel() // the body is never closed
			assert.NoError(t, svc.Ready(t.Context()))
			_ = rsp
		}
	})
}

// witness is a server that records its requests and then responds as configured.
type witness struct {
	then http.HandlerFunc

	mu   sync.Mutex
	came []string
}

func (s *witness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	s.came = append(s.came, fmt.Sprintf("%s %s %s %d %q %v %v %v",
		r.Method, r.Host, r.URL, r.ContentLength, body, r.Header, r.Trailer, err))
	s.mu.Unlock()
	if s.then != nil {
		s.then(w, r)
		return
	}
	say(w, "got "+string(body))
}

func (s *witness) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.came)
}

// mirrored is a stack of one Mirror over two servers.
func mirrored(t *testing.T, protocol EndpointOption, primary, shadow http.Handler) Service {
	t.Helper()
	to := endpoint(t, serve(t, shadow), protocol)
	return NewStack().Mirror(t.Context(), to, HTTP{}, MirrorPolicy{}).
		Service(endpoint(t, serve(t, primary), protocol))
}

// The mirror receives the same request as the primary.
func TestE2EMirrorCopies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, change := range map[string]func(*http.Request){
			"no body":      func(r *http.Request) { r.Body, r.ContentLength, r.GetBody = nil, 0, nil },
			"a length":     func(*http.Request) {},
			"chunks":       func(r *http.Request) { r.ContentLength, r.GetBody = -1, nil },
			"trailers":     func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"Sum": {"5"}} },
			"another host": func(r *http.Request) { r.Host = "elsewhere" },
			"at the cap": func(r *http.Request) {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(long)), int64(len(long))
			},
			"many fields":   func(r *http.Request) { r.Header = http.Header{"A": {"1", "2"}, "Authorization": {"x"}} },
			"an odd method": func(r *http.Request) { r.Method = "PROPFIND" },
		} {
			t.Run(name, func(t *testing.T) {
				primary, shadow := &witness{}, &witness{}
				svc := mirrored(t, protocol, primary, shadow)
				req := request(t, http.MethodPost, "http://web/a?b=c", "hello")
				change(req)
				rsp, err := svc.Call(t.Context(), req)
				require.NoError(t, err)
				assert.True(t, strings.HasPrefix(read(t, rsp), "got "))
				require.Eventually(t, func() bool { return len(shadow.all()) == 1 }, 20*time.Second, time.Millisecond)
				assert.Equal(t, primary.all(), shadow.all())
			})
		}
	})
}

var long = strings.Repeat("x", 64<<10)

// A client aborts its request, a body is too large, or the server does not read it. No copy
// is sent, and the response does not change.
func TestE2EMirrorIncompleteBody(t *testing.T) {
	broken := errors.New("the client broke off")
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		shadow := &witness{}
		svc := mirrored(t, protocol, &witness{}, shadow)
		for _, length := range []int64{int64(len(long)) + 1, -1} {
			req := request(t, http.MethodPost, "http://web/", "")
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(long+"x")), length
			rsp, err := svc.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, "got "+long+"x", read(t, rsp))
		}
		req := request(t, http.MethodPost, "http://web/", "")
		req.Body, req.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("ab"), brokenReader{broken})), -1
		_, err := svc.Call(t.Context(), req)
		require.ErrorIs(t, err, broken)
		// Copies of earlier requests would arrive before this one.
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/last", ""))
		require.NoError(t, err)
		read(t, rsp)
		require.Eventually(t, func() bool { return len(shadow.all()) > 0 }, 20*time.Second, time.Millisecond)
		require.Len(t, shadow.all(), 1)
		assert.Contains(t, shadow.all()[0], "/last")
	})
}

// A mirror that hangs, fails or rejects requests does not affect the client of a proxy.
func TestE2EMirrorBehindProxy(t *testing.T) {
	for name, shadow := range map[string]http.HandlerFunc{
		"hangs":  stalls,
		"breaks": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"fails":  unavailable,
		"talks without an end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				say(w, long)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			to := &witness{then: shadow}
			svc := NewStack().
				Mirror(ctx, endpoint(t, serve(t, to)), HTTP{}, MirrorPolicy{Timeout: time.Minute}).
				Service(endpoint(t, serve(t, &witness{})))
			addr := serve(t, Handler(svc))
			for _, h2 := range []bool{false, true} {
				for i := range 5 {
					rsp, err := client(t, h2).Post("http://"+addr, "text/plain", strings.NewReader(long[:i]))
					require.NoError(t, err)
					assert.Equal(t, "got "+long[:i], read(t, rsp))
				}
			}
			require.Eventually(t, func() bool { return len(to.all()) == 10 }, 20*time.Second, time.Millisecond)
			cancel()
		})
	}
}

// A client that expects 100 Continue receives it from the primary. The mirror receives the
// whole body.
func TestE2EMirrorExpectContinue(t *testing.T) {
	shadow := &witness{}
	primary := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		pipe(w, r.Body)
	})
	svc := mirrored(t, WithHTTP1(), primary, shadow)
	for path, want := range map[string]int{"/no": http.StatusForbidden, "/yes": http.StatusOK} {
		req := request(t, http.MethodPost, "http://web"+path, "hello")
		req.Header.Set("Expect", "100-continue")
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, want, rsp.StatusCode)
		read(t, rsp)
	}
	require.Eventually(t, func() bool { return len(shadow.all()) > 0 }, 20*time.Second, time.Millisecond)
	require.Len(t, shadow.all(), 1)
	assert.Contains(t, shadow.all()[0], "/yes")
	assert.NotContains(t, shadow.all()[0], "Expect")
}

// spread sends a request to the first of its endpoints that it has not been
// to, as a balancer would.
type spread []*Endpoint

func (s spread) Ready(context.Context) error { return nil }

func (s spread) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	tries := layer.AttemptsFromContext(ctx)
	for _, e := range s {
		if !tries.Has(e) {
			tries.Add(e)
			return e.Call(ctx, r)
		}
	}
	return s[len(s)-1].Call(ctx, r)
}

// visited is a server that counts the requests that reached it.
type visited struct {
	http.HandlerFunc
	n atomic.Int32
}

func (c *visited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.n.Add(1)
	c.HandlerFunc(w, r)
}

// retrying is a stack of one Retry over two servers.
func retrying(t *testing.T, protocol EndpointOption, policy RetryPolicy, a, b string) Service {
	t.Helper()
	policy.Backoff = layer.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	leaf := spread{endpoint(t, a, protocol), endpoint(t, b, protocol)}
	return NewStack().Retry(policy).Service(leaf)
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
	say(w, "not now")
}

func echoes(w http.ResponseWriter, r *http.Request) {
	fullDuplex(w)
	pipe(w, r.Body)
}

type policy = RetryPolicy

func TestE2ERetryOtherEndpoint(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		a, b := &visited{HandlerFunc: unavailable}, &visited{HandlerFunc: shapes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/length", ""))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.Equal(t, [2]int32{1, 1}, [2]int32{a.n.Load(), b.n.Load()})
		// With a body too.
		rsp, err = svc.Call(t.Context(), request(t, http.MethodPut, "http://web/echo", "hello again"))
		require.NoError(t, err)
		assert.Equal(t, "hello again", read(t, rsp))
		// Not a POST: what the server did with it is not known.
		rsp, err = svc.Call(t.Context(), request(t, http.MethodPost, "http://web/echo", "hello"))
		require.NoError(t, err)
		assert.Equal(t, 503, rsp.StatusCode)
		assert.Equal(t, "not now", read(t, rsp), "the response itself")
		// A POST with an idempotency key may be retried.
		req := request(t, http.MethodPost, "http://web/echo", "hello")
		req.Header.Set("Idempotency-Key", "1")
		rsp, err = svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
	})
}

func TestE2ERetryRejectedRequest(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{Budget: layer.NewBudget(0, -1, -1)}, refusedAddr(t), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.EqualValues(t, 1, b.n.Load())
	})
}

func TestE2ERetrySentRequest(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}}
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		_, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "hello"))
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, [2]int32{1, 0}, [2]int32{a.n.Load(), b.n.Load()})
		// Idempotent requests are retried.
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
	})
}

func TestE2ERetryLargeBody(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, length := range map[string]int64{"known length": 100 << 10, "unknown length": -1} {
			a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusServiceUnavailable)
				sayf(w, "%d", n)
			}}
			b := &visited{HandlerFunc: echoes}
			svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
			req := request(t, http.MethodPut, "http://web/", large)
			req.ContentLength = length
			rsp, err := svc.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, 503, rsp.StatusCode, name)
			assert.Equal(t, "102400", read(t, rsp), name)
			assert.Zero(t, b.n.Load(), name)
		}
	})
}

// The response arrives before the end of the request body. The rest of the body is then sent only to
// the other server (linkerd2-proxy#3216).
func TestE2ERetryEarlyResponse(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		answered := make(chan struct{})
		a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			fullDuplex(w)
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
			unavailable(w, r)
			flush(w)
			close(answered)
		}}
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		r, w := io.Pipe()
		go func() {
			say(w, "first")
			<-answered
			for range 20 {
				say(w, " and more")
			}
			w.Close()
		}()
		req := request(t, http.MethodPut, "http://web/", "")
		req.Body, req.ContentLength = r, -1
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "first"+strings.Repeat(" and more", 20), read(t, rsp))
		assert.Equal(t, [2]int32{1, 1}, [2]int32{a.n.Load(), b.n.Load()})
	})
}

func TestE2EAttemptTimeout(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		t.Parallel()
		a := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			<-r.Context().Done()
		}))
		// The second one is answered, unless that takes longer; then another is.
		svc := retrying(t, protocol, policy{AttemptTimeout: time.Second, MaxAttempts: 40}, a, serve(t, http.HandlerFunc(echoes)))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		for limit := 100 * time.Millisecond; ; limit *= 2 {
			svc = retrying(t, protocol, policy{AttemptTimeout: limit, MaxAttempts: 2}, a, a)
			_, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.ErrorIs(t, err, layer.ErrAttemptTimeout)
			if !errors.Is(err, layer.ErrNotReady) {
				break
			}
			require.Less(t, limit, patience, "time to connect")
		}
	})
}

func TestE2ERetryEmptyBudget(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{Budget: layer.NewBudget(0, -1, -1)}, serve(t, http.HandlerFunc(unavailable)), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		assert.Equal(t, 503, rsp.StatusCode)
		assert.Equal(t, "not now", read(t, rsp))
		assert.Zero(t, b.n.Load())
	})
}

func TestE2ERetryPushback(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for field, value := range map[string]string{"Retry-After": "3600", "Grpc-Retry-Pushback-Ms": "-1"} {
			a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(field, value)
				w.WriteHeader(http.StatusServiceUnavailable)
			}}
			b := &visited{HandlerFunc: echoes}
			svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 503, rsp.StatusCode)
			assert.Zero(t, b.n.Load(), field)
		}
	})
}

// A request that expects 100 Continue is sent once, and its body only after the 100.
func TestE2ERetryExpectContinue(t *testing.T) {
	a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }}
	b := &visited{HandlerFunc: echoes}
	svc := retrying(t, WithHTTP1(), policy{}, serve(t, a), serve(t, b))
	req, body := withBody(t, "hello")
	req.Method = http.MethodPut
	req.Header.Set("Expect", "100-continue")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	read(t, rsp)
	assert.Equal(t, 503, rsp.StatusCode)
	assert.Zero(t, body.reads.Load()+b.n.Load())
}

// A Retry forwards the body of an upgraded connection unchanged.
func TestE2ERetryUpgrade(t *testing.T) {
	addr := rawServer(t, func(_ int, conn net.Conn) {
		if _, err := http.ReadRequest(newRawH2(conn).in); err == nil {
			say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			pipe(conn, conn)
		}
	})
	svc := retrying(t, WithHTTP1(), policy{AttemptTimeout: patience}, addr, addr)
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	both, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	say(both, "hello")
	got := make([]byte, 5)
	_, err = io.ReadFull(both, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	assert.NoError(t, both.Close())
}

// A body with GetBody is not buffered, so it may have any length.
func TestE2ERetryGetBody(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		svc := retrying(t, protocol, policy{}, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			w.WriteHeader(http.StatusServiceUnavailable)
		})), serve(t, http.HandlerFunc(echoes)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://web/", strings.NewReader(large))
		require.NoError(t, err)
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Len(t, read(t, rsp), len(large))
	})
}

// An injected fault is answered with its status. It does not count as a failure of an
// endpoint and is not retried.
func TestE2ERetryChaos(t *testing.T) {
	b := &visited{HandlerFunc: echoes}
	svc := NewStack().
		Breaker(layer.BreakerPolicy{ConsecutiveFailures: 1}).
		FaultInjection(FaultPolicy{TTL: time.Minute, Fraction: 1, Err: &StatusError{Code: http.StatusTeapot}}).
		Service(endpoint(t, serve(t, b)))
	proxy := serve(t, Handler(svc))
	for range 3 {
		rsp, err := client(t, false).Get("http://" + proxy)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, http.StatusTeapot, rsp.StatusCode)
	}
	assert.Zero(t, b.n.Load())
}

// named is a resolver that names n endpoints.
func named(n int) resolve.Resolver {
	u := resolve.Update{Kind: resolve.Add}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		u.Endpoints = append(u.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr, 80)}})
	}
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if yield(u, nil) {
				<-ctx.Done()
			}
		}
	})
}

// balanced balances over n endpoints that are all reached by dial.
func balanced(ctx context.Context, n int, dial func(ctx context.Context, network, addr string) (net.Conn, error), opts ...EndpointOption) Service {
	return NewStack().Queue(100, 3*time.Second).Service(balance.Resolve(ctx, named(n), balance.Config{Target: "web"},
		func(ctx context.Context, t discover.Target) Service {
			return NewEndpoint(ctx, t.Endpoint.Addr.String(), append(opts, WithDialContext(dial))...)
		}))
}

// acceptCounter counts the connections that a listener accepted.
type acceptCounter struct {
	net.Listener
	accepted atomic.Int64
}

func (c *acceptCounter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted.Add(1)
	}
	return conn, err
}

// A request to one of many endpoints opens one connection, and not one for each.
func TestE2EBalancerOpensOneConnection(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		c := &acceptCounter{Listener: l}
		serveOn(t, c, http.HandlerFunc(shapes))
		svc := balanced(t.Context(), 500, func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}, protocol)
		require.NoError(t, get(t.Context(), svc, "/length"))
		time.Sleep(200 * time.Millisecond) // for others that would be on their way
		assert.EqualValues(t, 1, c.accepted.Load())
	})
}

// The balancer dials only a few endpoints at a time. It finds the working endpoint among many that
// drop all packets.
func TestE2EBalancerFewDialsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const n = 1000
		h := newHost(ctx, 0)
		var dialling, most atomic.Int64
		svc := balanced(ctx, n, func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "10.0.0.1:80" {
				return h.network.DialContext(ctx, network, addr)
			}
			now := dialling.Add(1)
			defer dialling.Add(-1)
			for old := most.Load(); now > old; old = most.Load() {
				if most.CompareAndSwap(old, now) {
					break
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		for range 300 { // one at a time, so that all else is by Ready
			_ = get(ctx, svc, "/")
		}
		for range 60 {
			require.NoError(t, get(ctx, svc, "/"), "by now the dead ones are set aside")
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, most.Load(), int64(3*128), "128 places, and attempts that outlast their turn")
	})
}

// A server that was down for 40 s gets requests within 5 s of its return, whether
// it refused connections or dropped their packets, with and without a queue.
func TestE2EBalancerServerRecovers(t *testing.T) {
	for name, off := range map[string]error{"refused": syscall.ECONNREFUSED, "silent": errSilence} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				s := &switched{network: &h.network}
				dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
					return s.DialContext(ctx, network, "10.0.0.1:80")
				}
				endpoint := func(ctx context.Context, t discover.Target) Service {
					return NewEndpoint(ctx, t.Endpoint.Addr.String(), WithDialContext(dial), WithIdleTimeout(time.Second))
				}
				bare := balance.Resolve(ctx, named(3), balance.Config{Target: "web"}, endpoint)
				for name, svc := range map[string]Service{
					"queue":    balanced(ctx, 3, dial, WithIdleTimeout(time.Second)),
					"no queue": bare,
					"alone":    SingleEndpoint(NewEndpoint(ctx, "10.0.0.9:80", WithDialContext(dial), WithIdleTimeout(time.Second))),
				} {
					require.NoError(t, svc.Ready(ctx))
					require.NoError(t, get(ctx, svc, "/"), name)
					time.Sleep(2 * time.Second)
					s.set(off)
					for began := time.Now(); time.Since(began) < 40*time.Second; time.Sleep(200 * time.Millisecond) {
						require.Error(t, get(ctx, svc, "/"), name)
					}
					s.set(nil)
					began, err := time.Now(), errors.New("not yet")
					for err != nil && time.Since(began) < time.Minute {
						if err = get(ctx, svc, "/"); errors.Is(err, layer.ErrClosed) {
							break
						}
						time.Sleep(100 * time.Millisecond)
					}
					require.NoError(t, err, name)
					assert.Less(t, time.Since(began), 5*time.Second, name)
				}
			})
		})
	}
}
