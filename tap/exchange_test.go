package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// The common fields of the three events, and the fields of each.
func TestExchangeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		w := watchAll(t, reg)
		svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
			time.Sleep(30 * time.Millisecond)
			return &reply{status: 201, Body: io.NopCloser(strings.NewReader("hello")), trailer: fields{{"Grpc-Status", "0"}}}, nil
		}))
		ctx := layer.WithRoute(t.Context(), &layer.Route{Name: "vote", Labels: map[string]string{"route": "vote"}})
		rsp, err := svc.Call(ctx, get("/api/vote"))
		require.NoError(t, err)
		time.Sleep(12 * time.Millisecond)
		_, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		time.Sleep(time.Second) // a Close after the end changes nothing
		require.NoError(t, rsp.Body.Close())

		common := Event{
			Direction:         Outbound,
			Source:            clientAddr,
			Destination:       serverAddr,
			SourceLabels:      hostLabels,
			DestinationLabels: podLabels,
			RouteLabels:       map[string]string{"route": "vote"},
		}
		init, response, end := common, common, common
		init.RequestInit = &RequestInit{Method: "GET", Scheme: "http", Authority: "web:80", Path: "/api/vote"}
		response.ResponseInit = &ResponseInit{SinceRequestInit: 30 * time.Millisecond, Status: 201}
		end.ResponseEnd = &ResponseEnd{
			SinceRequestInit: 42 * time.Millisecond, SinceResponseInit: new(12 * time.Millisecond),
			Bytes: 5, GRPCStatus: new(codes.OK),
		}
		require.Equal(t, []Event{init, response, end}, events(w))
	})
}

func TestExchangeAbsentFields(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	send(t, Layer[*call, *reply](reg, newAccess())(respond("")), &call{method: "GET", path: "/"})
	require.Equal(t, Event{
		SourceLabels: map[string]string{}, DestinationLabels: map[string]string{},
		RequestInit: &RequestInit{Method: "GET", Path: "/"},
	}, events(w)[0])
}

func TestExchangeRouteWithoutLabels(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	_, err := stand(reg, respond("")).Call(layer.WithRoute(t.Context(), &layer.Route{}), get("/"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{}, events(w)[0].RouteLabels)
}

type brokenBody struct{ err error }

func (b brokenBody) Read(p []byte) (int, error) { return copy(p, "abc"), b.err }
func (brokenBody) Close() error                 { return nil }

type coded struct{ code uint32 }

func (coded) Error() string       { return "coded" }
func (c coded) ResetCode() uint32 { return c.code }

// Response_end and eos, a row at a time.
func TestResponseEnd(t *testing.T) {
	body := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	status := func(v string) fields { return fields{{"Grpc-Status", v}} }
	drain := func(rsp *reply) { _, _ = io.Copy(io.Discard, rsp.Body) }
	boom := errors.New("boom")
	tests := []struct {
		name  string
		rsp   *reply
		err   error
		read  func(*reply)
		bytes uint64
		grpc  any // a code, or nil
		reset any
	}{
		{"body finished", &reply{Body: body("hello")}, nil, drain, 5, nil, nil},
		{"no body", &reply{}, nil, nil, 0, nil, nil},
		{"grpc-status in trailers", &reply{Body: body("x"), trailer: status("14")}, nil, drain, 1, codes.Unavailable, nil},
		{"trailers go before headers", &reply{Body: body("x"), header: status("1"), trailer: status("0")}, nil, drain, 1, codes.OK, nil},
		{"trailers without grpc-status", &reply{Body: body("x"), header: status("1"), trailer: fields{{"a", "b"}}}, nil, drain, 1, codes.Canceled, nil},
		{"trailer does not parse", &reply{Body: body("x"), trailer: status("x")}, nil, drain, 1, nil, nil},
		{"trailer negative", &reply{Body: body("x"), trailer: status("-1")}, nil, drain, 1, nil, nil},
		{"trailer too large", &reply{Body: body("x"), trailer: status("4294967296")}, nil, drain, 1, nil, nil},
		{"unknown code", &reply{Body: body("x"), trailer: status("99")}, nil, drain, 1, codes.Code(99), nil},
		{"trailers-only response", &reply{header: status("1")}, nil, nil, 0, codes.Canceled, nil},
		{"trailers-only response, closed unread", &reply{Body: body(""), header: status("1")}, nil, func(r *reply) { r.Body.Close() }, 0, codes.Canceled, nil},
		{"dropped early", &reply{Body: body("hello"), trailer: status("0")}, nil, func(r *reply) {
			_, _ = r.Body.Read(make([]byte, 2))
			r.Body.Close()
		}, 2, nil, nil},
		{"body error", &reply{Body: brokenBody{boom}, trailer: status("0")}, nil, drain, 3, nil, nil},
		{"body reset", &reply{Body: brokenBody{fmt.Errorf("read: %w", coded{2})}}, nil, drain, 3, nil, uint32(2)},
		{"body cancelled", &reply{Body: brokenBody{context.Canceled}}, nil, drain, 3, nil, uint32(8)},
		{"body error, status in headers", &reply{Body: brokenBody{boom}, header: status("3")}, nil, drain, 3, codes.InvalidArgument, nil},
		{"body reset, status in headers", &reply{Body: brokenBody{coded{2}}, header: status("3")}, nil, drain, 3, nil, uint32(2)},
		{"failed", nil, boom, nil, 0, nil, nil},
		{"failed with a reset", nil, fmt.Errorf("sent: %w", coded{1}), nil, 0, nil, uint32(1)},
		{"timed out inside", nil, &layer.Error{Kind: layer.ErrTimeout}, nil, 0, nil, uint32(8)},
		{"refused", nil, &layer.Error{Kind: layer.ErrNotReady}, nil, 0, nil, uint32(7)},
		{"refused with a reset", nil, &layer.Error{Kind: layer.ErrNotReady, Err: coded{9}}, nil, 0, nil, uint32(7)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := new(Registry)
			w := watch(t, reg, match.All(), 1, false)
			rsp, err := stand(reg, serve(func(context.Context, *call) (*reply, error) { return tt.rsp, tt.err })).Call(t.Context(), get("/"))
			require.ErrorIs(t, err, tt.err)
			if tt.read != nil {
				tt.read(rsp)
			}
			all := events(w)
			require.True(t, isDone(w), "the end was told")
			end := all[len(all)-1].ResponseEnd
			require.NotNil(t, end)
			require.Equal(t, tt.bytes, end.Bytes)
			require.Equal(t, tt.err == nil, end.SinceResponseInit != nil)
			if tt.grpc == nil {
				require.Nil(t, end.GRPCStatus)
			} else {
				require.Equal(t, tt.grpc, *end.GRPCStatus)
			}
			if tt.reset == nil {
				require.Nil(t, end.ResetCode)
			} else {
				require.Equal(t, tt.reset, *end.ResetCode)
			}
			if tt.err == nil {
				require.Equal(t, "qre", kinds(all))
			} else {
				require.Equal(t, "qe", kinds(all))
			}
		})
	}
}

// A caller that cancels at any time ends the stream with CANCEL.
func TestResponseEndCanceledCaller(t *testing.T) {
	cause := errors.New("the client hung up")
	t.Run("before the headers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			w := watchAll(t, reg)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			_, err := stand(reg, serve(func(ctx context.Context, _ *call) (*reply, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})).Call(ctx, get("/"))
			require.ErrorIs(t, err, cause)
			all := events(w)
			require.Equal(t, "qe", kinds(all))
			require.Equal(t, &ResponseEnd{SinceRequestInit: time.Second, ResetCode: new(uint32(8))}, all[1].ResponseEnd)
		})
	})
	t.Run("during an unread body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			w := watchAll(t, reg)
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := stand(reg, respond("never read")).Call(ctx, get("/"))
			require.NoError(t, err)
			time.Sleep(time.Second)
			cancel(cause)
			synctest.Wait()
			all := events(w)
			require.Equal(t, "qre", kinds(all))
			require.Equal(t, &ResponseEnd{
				SinceRequestInit: time.Second, SinceResponseInit: new(time.Second), ResetCode: new(uint32(8)),
			}, all[2].ResponseEnd)
		})
	})
}

// An early Close of the body is not a reset, even if the context has ended.
func TestResponseEndUnreadBody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Nil(t, resetCode(ctx, layer.ErrBodyClosedEarly))
	require.Equal(t, uint32(8), *resetCode(ctx, errors.New("any")))
}

// Several taps on one request are independent.
func TestStreamIDPerWatcher(t *testing.T) {
	reg := new(Registry)
	a, b := watchAll(t, reg), watch(t, reg, match.Path("/b"), 10, true)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/a"))
	send(t, svc, get("/b"))
	ids := func(all []Event) (ids []StreamID) {
		for _, e := range all {
			ids = append(ids, e.ID)
		}
		return ids
	}
	require.Equal(t, []StreamID{{0, 0}, {0, 0}, {0, 0}, {0, 1}, {0, 1}, {0, 1}}, ids(events(a)))
	require.Equal(t, []StreamID{{1, 0}, {1, 0}, {1, 0}}, ids(events(b)))
}

func TestStreamIDBaseOverflow(t *testing.T) {
	reg := &Registry{nextBase: 1<<32 - 1}
	a, b := watchAll(t, reg), watchAll(t, reg)
	require.Equal(t, []uint32{1<<32 - 1, 0}, []uint32{a.base, b.base})
}

func TestHeadersOnlyOnRequest(t *testing.T) {
	reg := new(Registry)
	with, without := watch(t, reg, match.All(), 9, true), watch(t, reg, match.All(), 9, false)
	req := get("/")
	req.header = fields{{"X-Two", "1"}, {"X-Two", "2"}, {"X-Raw", "\xff\x00"}}
	send(t, stand(reg, serve(func(context.Context, *call) (*reply, error) {
		return &reply{
			status: 200, Body: io.NopCloser(strings.NewReader("")),
			header: fields{{"Content-Type", "text/plain"}}, trailer: fields{{"Grpc-Status", "5"}},
		}, nil
	})), req)

	all := events(with)
	require.Equal(t, []Field{{"x-raw", "\xff\x00"}, {"x-two", "1"}, {"x-two", "2"}}, all[0].RequestInit.Headers, "by name, raw")
	require.Equal(t, []Field{{"content-type", "text/plain"}}, all[1].ResponseInit.Headers)
	require.Equal(t, []Field{{"grpc-status", "5"}}, all[2].ResponseEnd.Trailers)

	all = events(without)
	require.Nil(t, all[0].RequestInit.Headers)
	require.Nil(t, all[1].ResponseInit.Headers)
	require.Nil(t, all[2].ResponseEnd.Trailers)
	require.Equal(t, codes.NotFound, *all[2].ResponseEnd.GRPCStatus)
}

func TestHeadersEmptyOrNil(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.All(), 9, true)
	send(t, stand(reg, respond("")), get("/"))
	all := events(w)
	require.Equal(t, []Field{}, all[0].RequestInit.Headers)
	require.Equal(t, []Field{}, all[1].ResponseInit.Headers)
	require.Nil(t, all[2].ResponseEnd.Trailers, "there were none")
}

func TestSecretsAreRedacted(t *testing.T) {
	secrets := fields{
		{"Authorization", "Bearer s3cret"},
		{"COOKIE", "id=s3cret"}, {"cookie", "other=s3cret"},
		{"Set-Cookie", "id=s3cret"},
		{"proxy-authorization", "Basic s3cret"},
		{"X-Api-Key", "k3y"},
		{"X-OTP", "s3cret"}, {"Cookie2", "s3cret"}, {"Link", "</a?token=s3cret>"},
		{"X-Plain", "plain"},
	}
	show := func(opts ...RegistryOption) string {
		reg := NewRegistry(opts...)
		w := watch(t, reg, match.All(), 9, true)
		req := get("/")
		req.header = secrets
		req.authority = "me:s3cret@web:80"
		send(t, stand(reg, serve(func(context.Context, *call) (*reply, error) {
			return &reply{Body: io.NopCloser(strings.NewReader("")), header: secrets, trailer: secrets}, nil
		})), req)
		require.Equal(t, "Bearer s3cret", req.header[0][1], "the request itself keeps it")
		var b strings.Builder
		for _, e := range events(w) {
			b.WriteString(received(t, e.proto()).String())
		}
		return b.String()
	}
	text := show()
	require.NotContains(t, text, "s3cret")
	require.Equal(t, 27, strings.Count(text, redacted))
	require.NotContains(t, text, "k3y")
	require.Contains(t, text, "plain")

	text = show(WithRevealed("X-API-Key"))
	require.Contains(t, text, "k3y")
	require.NotContains(t, text, "s3cret")

	text = show(WithRevealed("Cookie"))
	require.Contains(t, text, "id=s3cret")
	require.NotContains(t, text, "Bearer s3cret")
	require.NotContains(t, text, "me:s3cret")

	require.NotContains(t, show(WithRevealed("Cookie"), WithRedacted("cookie")), "s3cret", "the last one holds")
}

func TestSourceIsNormalised(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.Source(mask("10.0.0.0/8")), 9, false)
	req := get("/")
	req.source = netip.MustParseAddrPort("[::ffff:10.0.0.1]:7")
	send(t, stand(reg, respond("")), req)
	require.Equal(t, netip.MustParseAddrPort("10.0.0.1:7"), events(w)[0].Source)
}

// aborts are responses that are aborted after they started. Each function returns when its
// server has stopped.
var aborts = map[string]func(*testing.T, *Registry){
	"HTTP handler panics": func(t *testing.T, reg *Registry) {
		halfOf(t, httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound)), func() {
			panic(http.ErrAbortHandler)
		})
	},
	"HTTP client leaves": func(t *testing.T, reg *Registry) {
		h := httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // as a reverse proxy does it
			}))
		server := httptest.NewServer(h)
		defer server.Close()
		rsp, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		_, err = io.ReadFull(rsp.Body, make([]byte, len("half")))
		require.NoError(t, err)
		_ = rsp.Body.Close()
	},
	"gRPC handler panics": func(t *testing.T, reg *Registry) {
		recovers := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer func() {
				if recover() != nil {
					err = status.Error(codes.Internal, "panic")
				}
			}()
			return next(srv, s)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainStreamInterceptor(recovers)},
			grpclayer.NewServer(Layer(reg, grpclayer.GRPC{}, Inbound)).ServerOptions()...)...)
		testpb.RegisterTestServiceServer(server, panicServer{})
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(l) })
		defer func() { server.Stop(); served.Wait() }()
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		s, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		require.Equal(t, codes.Internal, status.Code(drain(s.Recv)))
	},
}

// halfOf serves a handler behind wrap, which writes half of a response and then calls then.
// The client must get an error.
func halfOf(t *testing.T, wrap func(http.Handler) http.Handler, then func()) {
	t.Helper()
	server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		then()
	})))
	defer server.Close()
	rsp, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	_, err = io.ReadAll(rsp.Body)
	require.Error(t, err, "the client does not take it for whole")
	_ = rsp.Body.Close()
}

type panicServer struct {
	testpb.UnimplementedTestServiceServer
}

func (panicServer) StreamingOutputCall(
	_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	_ = out.Send(new(testpb.StreamingOutputCallResponse))
	panic("after the first message")
}

// A response that is aborted after its start is a failure for all watchers. Top counts the
// same with and without other watchers.
func TestResponseAbortedAfterStart(t *testing.T) {
	for name, abort := range aborts {
		for _, watched := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", watched ", watched), func(t *testing.T) {
				reg := new(Registry)
				var all, failed *watcher
				if watched {
					all = watchOn(t, reg, &tappb.WatchRequest{})
					failed = watchOn(t, reg, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}})
				}
				c := countAll(t, reg, nil)
				abort(t, reg)
				var r *tappb.Row
				require.Eventually(t, func() bool { // the end of the context is reported by another goroutine
					r = only(t, c)
					return r.GetCount() == 1
				}, time.Minute, time.Millisecond)
				require.Zero(t, r.GetSuccesses())
				if !watched {
					return
				}
				for _, w := range []*watcher{all, failed} {
					var got []Event
					require.Eventually(t, func() bool { // the end of the context is reported by another goroutine
						got = append(got, readAll(w)...)
						return kinds(got) == "qre"
					}, time.Minute, time.Millisecond)
					require.Equal(t, 200, got[1].ResponseInit.Status)
					end := got[2].ResponseEnd
					require.NotZero(t, end.Bytes)
					require.NotNil(t, end.SinceResponseInit)
					require.Nil(t, end.GRPCStatus)
					require.True(t, end.Failed(200))
					want := "INTERNAL_ERROR"
					if name == "HTTP client leaves" {
						want = "CANCEL"
					}
					require.Equal(t, want, end.Reset())
				}
			})
		}
	}
}

// A client that leaves before the response has the status 499, as in the access log. The request
// has not failed.
func TestClientLeft(t *testing.T) {
	began, closed := make(chan struct{}, 1), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}))
	defer up.Close()
	reg := new(Registry)
	all := watchOn(t, reg, &tappb.WatchRequest{})
	c := countAll(t, reg, nil)
	endpoint := httplayer.NewEndpoint(t.Context(), up.Listener.Addr().String())
	svc := Layer(reg, httplayer.HTTP{}, Outbound)(httplayer.SingleEndpoint(endpoint))
	h := httplayer.Handler(svc)
	var once sync.Once
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer once.Do(func() { close(closed) })
		h.ServeHTTP(w, r)
	}))
	defer front.Close()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL, http.NoBody)
	require.NoError(t, err)
	go func() { <-began; leave() }()
	_, err = front.Client().Do(req) //nolint:bodyclose // it fails
	require.ErrorIs(t, err, context.Canceled)
	<-closed
	got := readAll(all)
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, 499, got[1].ResponseInit.Status)
	require.Equal(t, "CANCEL", got[2].ResponseEnd.Reset())
	require.False(t, got[2].ResponseEnd.Failed(499))
	r := only(t, c)
	require.EqualValues(t, 1, r.GetSuccesses())
}

type httpLayer = layer.Layer[*http.Request, *http.Response]

type httpFunc = layer.Func[*http.Request, *http.Response]

// answered is a response of a layer, without a handler.
func answered(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusNonAuthoritativeInfo, Header: http.Header{"A": {"b"}}, Request: r,
		Body: io.NopCloser(strings.NewReader("hello")),
	}
}

// visit requests path of h, behind a Middleware with a tap between two layers,
// and returns the response.
func visit(t *testing.T, reg *Registry, above, below httpLayer, h http.Handler, path string) string {
	t.Helper()
	tapped := Layer(reg, httplayer.HTTP{}, Inbound)
	around := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return above(tapped(below(next)))
	}
	server := httptest.NewServer(httplayer.Middleware(around)(h))
	defer server.Close() // waits for the handler
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
	require.NoError(t, err)
	rsp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return string(body)
}

func nothingBetween(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
	return next
}

// A response that a layer returns in place of a handler is shown once.
func TestEarlyResponseOfLayer(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	answers := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(_ context.Context, r *http.Request) (*http.Response, error) { return answered(r), nil })
	}
	require.Equal(t, "hello", visit(t, reg, nothingBetween, answers, http.NotFoundHandler(), "/"))
	end := endOf(t, readAll(w))
	require.EqualValues(t, 5, end.Bytes)
	require.Equal(t, "hello", string(end.ResponseBody.Data))
}

// A response that a layer above returns in place of an error is not shown.
func TestEarlyResponseReplacesError(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	req := &tappb.WatchRequest{BodyBytes: 100, Fields: true}
	w := watchOn(t, reg, req)
	req.Response = &tappb.ResponseMatch{}
	held := watchOn(t, reg, req)
	fails := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, errors.New("broken") })
	}
	consoles := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if _, err := next.Call(ctx, r); err == nil {
				return nil, errors.New("it did not fail")
			}
			return answered(r), nil
		})
	}
	require.Equal(t, "hello", visit(t, reg, consoles, fails, http.NotFoundHandler(), "/"))
	require.Equal(t, "qe", kinds(readAll(w)))
	require.Equal(t, "qe", kinds(readAll(held)))
	require.EqualValues(t, maxText, held.buf.Load().room.Load(), "what was kept back gave back what it took")
}

// Of two attempts, only the one that the handler served has its response.
func TestEarlyResponseAfterRejectedAttempt(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	calls := 0
	refusesOnce := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				return nil, layer.ErrNotReady
			}
			return next.Call(ctx, r)
		})
	}
	twice := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if _, err := next.Call(ctx, r); !errors.Is(err, layer.ErrNotReady) {
				return nil, errors.New("it was not refused")
			}
			return next.Call(ctx, r)
		})
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	require.Equal(t, "hello", visit(t, reg, twice, refusesOnce, h, "/"))
	byStream := map[uint64][]Event{}
	for _, e := range readAll(w) {
		byStream[e.ID.Stream] = append(byStream[e.ID.Stream], e)
	}
	require.Equal(t, "qe", kinds(byStream[0]))
	require.Equal(t, "qre", kinds(byStream[1]))
	require.EqualValues(t, 5, byStream[1][2].ResponseEnd.Bytes)
}

// A response that a layer above returns in place of a panic is not shown.
func TestEarlyResponseReplacesPanic(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	panics := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(context.Context, *http.Request) (*http.Response, error) { panic("boom") })
	}
	recovers := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (rsp *http.Response, err error) {
			defer func() {
				if recover() != nil {
					rsp, err = answered(r), nil
				}
			}()
			return next.Call(ctx, r)
		})
	}
	require.Equal(t, "hello", visit(t, reg, recovers, panics, http.NotFoundHandler(), "/"))
	require.Equal(t, "qe", kinds(readAll(w)))
}
