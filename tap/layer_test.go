package tap

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// mute is a context that fails the test if a value is looked up in it.
type mute struct {
	context.Context
	t *testing.T
}

func (m mute) Value(any) any {
	m.t.Error("looked up in the context")
	return nil
}

func TestLayerRejectsNilAccessor(t *testing.T) {
	require.PanicsWithValue(t, "tap: Layer: nil Accessor", func() { Layer[*call, *reply](nil, nil) })
}

func TestLayerIdle(t *testing.T) {
	a := newAccess()
	want := &reply{status: 200}
	svc := Layer[*call, *reply](new(Registry), a)(serve(func(context.Context, *call) (*reply, error) { return want, nil }))
	var ctx context.Context = mute{context.Background(), t}
	req := get("/")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		got, err := svc.Call(ctx, req)
		if got != want || err != nil {
			t.Error("not passed through")
		}
	}))
	require.Zero(t, a.request()+a.status.Load()+a.response.Load())
}

func TestLayerUnmatchedAllocations(t *testing.T) {
	reg := new(Registry)
	watch(t, reg, match.All(match.Method("GET"), match.SourcePorts(1, 1)), 1, false)
	watch(t, reg, match.RouteLabel("route", "other"), 1, true)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { return nil, nil }))
	ctx := layer.WithRoute(context.Background(), &layer.Route{Labels: map[string]string{"route": "this"}})
	req := get("/")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(ctx, req) }))
}

func TestLayerIdleAfterWatch(t *testing.T) {
	reg := new(Registry)
	c, err := compile(match.All())
	require.NoError(t, err)
	w, err := reg.watch(terms{match: c, limit: 1})
	require.NoError(t, err)
	require.NotNil(t, reg.active.Load())
	reg.close(w)
	require.Nil(t, reg.active.Load())
}

func TestZeroAndNilRegistry(t *testing.T) {
	send(t, Layer[*call, *reply](nil, newAccess())(respond("x")), get("/"))
	reg := new(Registry)
	w := watchAll(t, reg)
	send(t, stand(reg, respond("x")), get("/"))
	require.Equal(t, "qre", kinds(events(w)))
}

func TestReadyIsForwarded(t *testing.T) {
	closed := stand(new(Registry), shut{})
	require.ErrorIs(t, closed.Ready(t.Context()), layer.ErrClosed)
	require.ErrorIs(t, layer.Poll(closed), layer.ErrClosed)
}

type shut struct{}

func (shut) Ready(context.Context) error { return layer.ErrClosed }
func (shut) Call(context.Context, *call) (*reply, error) {
	return nil, &layer.Error{Layer: "shut", Kind: layer.ErrClosed}
}

func TestLayerForwardsErrors(t *testing.T) {
	boom := errors.New("boom")
	reg := new(Registry)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { return &reply{status: 1}, boom }))
	for range 2 { // idle, then watched
		rsp, err := svc.Call(t.Context(), get("/"))
		require.Same(t, boom, err)
		require.Equal(t, 1, rsp.status)
		watchAll(t, reg)
	}
}

func TestLayerEndedContext(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	cancel(cause)
	_, err := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		t.Error("the endpoint was called")
		return nil, nil
	})).Call(ctx, get("/"))
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, cause)
	require.Empty(t, events(w))
	require.Zero(t, w.seen.Load())
}

// A rejected request is shown before it is rejected.
func TestLayerRejectionEvents(t *testing.T) {
	for _, watched := range []bool{false, true} {
		reg := new(Registry)
		var w *watcher
		if watched {
			w = watch(t, reg, match.All(), 10, true)
		}
		req := get("/")
		req.header = fields{{"Authorization", "secret"}}
		_, err := stand(reg, shut{}).Call(t.Context(), req)
		require.ErrorIs(t, err, layer.ErrClosed)
		require.Equal(t, fields{{"Authorization", "secret"}}, req.header, "the request is untouched")
		if !watched {
			continue
		}
		all := events(w)
		require.Equal(t, "qe", kinds(all))
		end := all[1].ResponseEnd
		require.Equal(t, uint32(7), *end.ResetCode, "REFUSED_STREAM")
		require.Nil(t, end.SinceResponseInit)
	}
}

func TestLayerHangingRequest(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		require.Equal(t, "q", kinds(events(w)), "before the endpoint answered")
		return respond("x")(t.Context(), nil)
	}))
	send(t, svc, get("/"))
	require.Equal(t, "re", kinds(events(w)))
}

func TestLayerPanic(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.All(), 1, false)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { panic("boom") }))
	require.PanicsWithValue(t, "boom", func() { _, _ = svc.Call(t.Context(), get("/")) })
	all := events(w)
	require.Equal(t, "qe", kinds(all))
	require.Nil(t, all[1].ResponseEnd.ResetCode)
	require.True(t, isDone(w))
}

func TestLayerUnwatchedResponse(t *testing.T) {
	reg := new(Registry)
	watch(t, reg, match.Method("PUT"), 1, false)
	body := io.NopCloser(strings.NewReader(""))
	rsp, err := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		return &reply{Body: body}, nil
	})).Call(t.Context(), get("/"))
	require.NoError(t, err)
	require.Equal(t, body, rsp.Body, "not wrapped")
}

func TestDescribe(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 1))
	svc := stand(reg, respond("x"))
	require.Equal(t, "tap        watching=0 dropped=0\nlayer.Func\n", layer.Describe(svc).String())
	w := watch(t, reg, match.All(), 2, false)
	for range 3 {
		send(t, svc, get("/"))
	}
	// The first: init taken, two dropped. The second: init dropped, so nothing
	// more is tried. The third is beyond the limit.
	require.Equal(t, "tap        watching=1 dropped=3\nlayer.Func\n", layer.Describe(svc).String())
	require.Equal(t, "tap        watching=1 dropped=3\n"+
		"  watcher    base=0 seen=2 limit=2 in_flight=0 dropped=3\n", reg.Describe().String())
	reg.close(w)
	require.Equal(t, "tap        watching=0 dropped=3\n", reg.Describe().String(), "the count outlives the watcher")
}

func TestSourceAddressesComparable(t *testing.T) {
	for in, want := range map[string]string{
		"[::ffff:10.0.0.1]:80": "10.0.0.1:80",
		"[fe80::1%eth0]:80":    "[fe80::1]:80",
		"10.0.0.1:80":          "10.0.0.1:80",
	} {
		require.Equal(t, netip.MustParseAddrPort(want), normalizeAddr(netip.MustParseAddrPort(in)))
	}
	require.Equal(t, netip.AddrPort{}, normalizeAddr(netip.AddrPortFrom(netip.Addr{}, 80)))
}

func TestLabelsCopied(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	labels := map[string]string{"pod": "a"}
	svc := Layer[*call, *reply](reg, newAccess(), WithDestination(serverAddr, labels))(respond("x"))
	labels["pod"] = "b"
	send(t, svc, get("/"))
	require.Equal(t, map[string]string{"pod": "a"}, events(w)[0].DestinationLabels)
}

func TestDirectionString(t *testing.T) {
	require.Equal(t, "inbound outbound unknown",
		Inbound.String()+" "+Outbound.String()+" "+Direction(0).String())
}

// web is a client, a tap, and a real server.
type web struct {
	layer.Service[*http.Request, *http.Response]
	url    string
	addr   netip.AddrPort
	stream interface{ Recv() (*pb.TapEvent, error) }
	t      *testing.T
}

// newWeb serves h, and watches one request over gRPC.
func newWeb(t *testing.T, h http.HandlerFunc, h2 bool) *web {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	upstream := httptest.NewUnstartedServer(h)
	upstream.Config.Protocols = protocols
	upstream.Start()
	t.Cleanup(upstream.Close)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)

	p := listen(t, NewServer(new(Registry)), nil)
	w := &web{url: upstream.URL, addr: mustAddr(upstream.Listener.Addr().String()), t: t}
	w.stream = p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: match.All(), Extract: match.Headers()})
	w.Service = Layer(p.reg, httplayer.HTTP{}, Inbound, WithDestination(w.addr, nil))(
		layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
			return transport.RoundTrip(r)
		}))
	return w
}

func (w *web) call(ctx context.Context) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/a%2Fb?token=s3cret", nil)
	require.NoError(w.t, err)
	r.RemoteAddr = "127.0.0.1:4242"
	r.Header.Set("Authorization", "Bearer s3cret")
	return w.Call(ctx, r)
}

// seen reads the stream to its end.
func (w *web) seen() []Event {
	var got []Event
	for {
		m, err := w.stream.Recv()
		if err != nil {
			require.ErrorIs(w.t, err, io.EOF)
			return got
		}
		require.NotContains(w.t, m.String(), "s3cret")
		got = append(got, eventOf(m))
	}
}

func TestInboundHTTP1(t *testing.T) {
	w := newWeb(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "Bearer s3cret", r.Header.Get("Authorization"), "the service gets what was sent")
		_, _ = io.WriteString(w, "hello")
	}, false)
	rsp, err := w.call(t.Context())
	require.NoError(t, err)
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))

	got := w.seen()
	require.Equal(t, "qre", kinds(got))
	for _, e := range got {
		require.Equal(t, Inbound, e.Direction)
		require.Equal(t, mustAddr("127.0.0.1:4242"), e.Source)
		require.Equal(t, w.addr, e.Destination)
		require.Equal(t, map[string]string{"tls": "loopback"}, e.SourceLabels)
	}
	require.Equal(t, &RequestInit{
		Method: "GET", Scheme: "http", Authority: w.addr.String(), Path: "/a%2Fb",
		Headers: []Field{{"authorization", "[redacted]"}},
	}, got[0].RequestInit)
	require.Equal(t, 200, got[1].ResponseInit.Status)
	end := got[2].ResponseEnd
	require.EqualValues(t, 5, end.Bytes)
	require.Nil(t, end.GRPCStatus)
	require.Nil(t, end.ResetCode)
	require.Positive(t, *end.SinceResponseInit)
	require.Greater(t, end.SinceRequestInit, *end.SinceResponseInit)
	require.Equal(t, end.SinceRequestInit-*end.SinceResponseInit, got[1].ResponseInit.SinceRequestInit)
}

func TestGRPCStatusInHeadersOnly(t *testing.T) {
	w := newWeb(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Grpc-Status", "1")
	}, true)
	rsp, err := w.call(t.Context())
	require.NoError(t, err)
	_, _ = io.ReadAll(rsp.Body)
	got := w.seen()
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, codes.Canceled, *got[2].ResponseEnd.GRPCStatus)
}

func TestGRPCStatusInTrailers(t *testing.T) {
	w := newWeb(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "message")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "2")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "doughnut")
	}, true)
	rsp, err := w.call(t.Context())
	require.NoError(t, err)
	_, _ = io.ReadAll(rsp.Body)
	end := w.seen()[2].ResponseEnd
	require.Equal(t, codes.Unknown, *end.GRPCStatus)
	require.ElementsMatch(t, []Field{{"grpc-message", "doughnut"}, {"grpc-status", "2"}}, end.Trailers)
	require.EqualValues(t, 7, end.Bytes)
}

// The reset codes of net/http's own HTTP/2.
func TestHTTP2Resets(t *testing.T) {
	t.Run("before the headers", func(t *testing.T) {
		w := newWeb(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true)
		_, err := w.call(t.Context())
		require.Error(t, err)
		got := w.seen()
		require.Equal(t, "qe", kinds(got))
		require.Equal(t, uint32(2), *got[1].ResponseEnd.ResetCode, "INTERNAL_ERROR")
	})
	t.Run("during the body", func(t *testing.T) {
		read := make(chan struct{})
		w := newWeb(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hel")
			_ = http.NewResponseController(w).Flush()
			<-read
			panic(http.ErrAbortHandler)
		}, true)
		rsp, err := w.call(t.Context())
		require.NoError(t, err)
		_, err = io.ReadFull(rsp.Body, make([]byte, 3))
		require.NoError(t, err)
		close(read)
		_, err = io.ReadAll(rsp.Body)
		require.Error(t, err)
		end := w.seen()[2].ResponseEnd
		require.Equal(t, uint32(2), *end.ResetCode)
		require.EqualValues(t, 3, end.Bytes)
	})
	t.Run("by the client", func(t *testing.T) {
		w := newWeb(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, true)
		ctx, cancel := context.WithCancel(t.Context())
		rsp, err := w.call(ctx)
		require.NoError(t, err)
		cancel()
		_, err = io.ReadAll(rsp.Body)
		require.Error(t, err)
		require.Equal(t, uint32(8), *w.seen()[2].ResponseEnd.ResetCode)
	})
}

// A service that returns neither a response nor an error has the same effect as without a
// tap.
func TestHTTPNilResponse(t *testing.T) {
	reg := NewRegistry(WithBodies(10, asItIs))
	svc := Layer(reg, httplayer.HTTP{})(layer.Func[*http.Request, *http.Response](
		func(context.Context, *http.Request) (*http.Response, error) { return nil, nil }))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	c := countAll(t, reg, nil)
	rsp, err := svc.Call(t.Context(), r)
	require.NoError(t, err)
	require.Nil(t, rsp)
	w := watchOn(t, reg, &tappb.WatchRequest{Fields: true, BodyBytes: 5, Explain: true})
	rsp, err = svc.Call(t.Context(), r)
	require.NoError(t, err)
	require.Nil(t, rsp)
	require.Equal(t, "qre", kinds(events(w)))
	require.EqualValues(t, 2, only(t, c).GetCount())
}

// A tap is one line in any Go service. These are such services: real servers
// and clients over TCP.

func TestHTTPHandlerEvents(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Fields: true})
	half := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "hel")
		_ = http.NewResponseController(w).Flush()
		<-half
		_, _ = w.Write([]byte("lo"))
		w.Header().Set("Sum", "5")
	})
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(handler))
	defer server.Close()
	var from string
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		from = c.LocalAddr().String()
		return c, err
	}}}
	defer client.CloseIdleConnections()
	rsp, err := client.Get(server.URL + "/a?b")
	require.NoError(t, err)
	begun := readAll(w)
	require.Equal(t, "qr", kinds(begun), "the response is shown when it begins")
	require.Equal(t, 202, begun[1].ResponseInit.Status)
	close(half)
	_, err = io.ReadAll(rsp.Body)
	require.NoError(t, err)
	server.Close()
	got := append(begun, readAll(w)...)
	require.Equal(t, "qre", kinds(got))
	for _, e := range got {
		require.Equal(t, Inbound, e.Direction)
		require.Equal(t, from, e.Source.String())
		require.Equal(t, server.Listener.Addr().String(), e.Destination.String())
		require.Equal(t, map[string]string{"tls": "loopback"}, e.SourceLabels)
	}
	require.Equal(t, "/a", got[0].RequestInit.Path)
	require.Equal(t, server.Listener.Addr().String(), got[0].RequestInit.Authority)
	end := got[2].ResponseEnd
	require.EqualValues(t, 5, end.Bytes)
	require.Equal(t, []Field{{"sum", "5"}}, end.Trailers)
	require.Less(t, *end.SinceResponseInit, end.SinceRequestInit)
}

// Handlers without a response, with a long one, and with an error.
func TestHTTPHandlerKinds(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	mux := http.NewServeMux()
	mux.HandleFunc("/silent", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/copies", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "doc.go") })
	mux.HandleFunc("/aborts", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hel")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(mux))
	defer server.Close()
	size := 0
	for _, path := range []string{"/silent", "/copies"} {
		rsp, err := server.Client().Get(server.URL + path)
		require.NoError(t, err)
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		_ = rsp.Body.Close()
		size = len(b)
	}
	rsp, err := server.Client().Head(server.URL + "/copies")
	require.NoError(t, err)
	_ = rsp.Body.Close()
	if rsp, err := server.Client().Post(server.URL+"/aborts", "", nil); err == nil {
		_, err = io.ReadAll(rsp.Body)
		require.Error(t, err)
		_ = rsp.Body.Close()
	}
	server.Close()
	got := readAll(w)
	require.Equal(t, "qreqreqreqre", kinds(got))
	require.Zero(t, got[2].ResponseEnd.Bytes)
	require.EqualValues(t, size, got[5].ResponseEnd.Bytes)
	require.Zero(t, got[8].ResponseEnd.Bytes, "HEAD")
	require.EqualValues(t, 3, got[11].ResponseEnd.Bytes)
	require.Equal(t, "INTERNAL_ERROR", got[11].ResponseEnd.Reset(), "broken off")
	require.True(t, got[11].ResponseEnd.Failed(200))
	for _, i := range []int{2, 5, 8} {
		require.Nil(t, got[i].ResponseEnd.ResetCode)
	}
}

func TestHTTPClientEvents(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer server.Close()
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	client := &http.Client{Transport: httplayer.Transport(Layer(reg, httplayer.HTTP{}, Outbound), nil)}
	defer client.CloseIdleConnections()
	rsp, err := client.Get(server.URL + "/a?b")
	require.NoError(t, err)
	_, _ = io.ReadAll(rsp.Body)
	_ = rsp.Body.Close()
	got := readAll(w)
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, Outbound, got[0].Direction)
	require.Equal(t, server.Listener.Addr().String(), got[0].Destination.String())
	require.Equal(t, server.Listener.Addr().String(), got[0].RequestInit.Authority)
	require.Equal(t, "http", got[0].RequestInit.Scheme)
	require.Equal(t, "/a", got[0].RequestInit.Path)
	require.EqualValues(t, 5, got[2].ResponseEnd.Bytes)
	_, err = client.Get("http://" + freeport.Addr(t))
	require.Error(t, err)
	require.Equal(t, "qe", kinds(readAll(w)))
}

// Bodies of both sides are shown of a handler, too.
func TestHTTPHandlerBodies(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "you said ")
			_, _ = w.Write(b)
		})))
	defer server.Close()
	rsp, err := server.Client().Post(server.URL, "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	_ = rsp.Body.Close()
	server.Close()
	got := readAll(w)
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, "hello", string(got[2].ResponseEnd.RequestBody.Data))
	require.Equal(t, "you said hello", string(got[2].ResponseEnd.ResponseBody.Data))
}

// A handler calls others with the context of its request: the events of the
// client are separate from those of the handler.
func TestHTTPClientInsideHandler(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer backend.Close()
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	client := &http.Client{Transport: httplayer.Transport(Layer(reg, httplayer.HTTP{}, Outbound), nil)}
	defer client.CloseIdleConnections()
	front := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			req, _ := http.NewRequestWithContext(r.Context(), http.MethodGet, backend.URL, nil)
			rsp, err := client.Do(req)
			if assert.NoError(t, err) {
				_, _ = io.Copy(w, rsp.Body)
				_ = rsp.Body.Close()
			}
		})))
	defer front.Close()
	rsp, err := front.Client().Get(front.URL)
	require.NoError(t, err)
	_ = rsp.Body.Close()
	front.Close()
	got := map[Direction][]Event{}
	for _, e := range readAll(w) {
		got[e.Direction] = append(got[e.Direction], e)
	}
	for _, d := range []Direction{Inbound, Outbound} {
		require.Equal(t, "qre", kinds(got[d]))
		require.EqualValues(t, 5, got[d][2].ResponseEnd.Bytes)
	}
}

// interop is gRPC's test service.
type interop struct {
	testpb.UnimplementedTestServiceServer
	half chan struct{} // a stream continues when it is closed
}

func (s interop) code(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md["fail"]) > 0 {
		return status.Error(codes.NotFound, "no such thing")
	}
	return nil
}

func (s interop) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: "me"}, s.code(ctx)
}

func (s interop) StreamingOutputCall(
	_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	out.SetTrailer(metadata.Pairs("sum", "2"))
	_ = out.SetHeader(metadata.Pairs("color", "blue"))
	if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
		return err
	}
	select {
	case <-s.half:
	case <-out.Context().Done():
		return out.Context().Err()
	}
	if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
		return err
	}
	return s.code(out.Context())
}

func (s interop) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if err := in.SendHeader(metadata.Pairs("color", "red")); err != nil {
		return err
	}
	for {
		if _, err := in.Recv(); err != nil {
			break
		}
	}
	if err := s.code(in.Context()); err != nil {
		return err
	}
	return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: 3})
}

func (s interop) FullDuplexCall(
	both grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
) error {
	for {
		if _, err := both.Recv(); err != nil {
			return s.code(both.Context())
		}
		if err := both.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// rig is a gRPC server and a client, each with its own tap.
type rig struct {
	client testpb.TestServiceClient
	addr   string
	conn   *grpc.ClientConn
	server *grpc.Server
	half   chan struct{}
	near   *watcher // of the client
	far    *watcher // of the server
}

func newRig(t *testing.T, sopts ...grpc.ServerOption) *rig {
	t.Helper()
	here, there := new(Registry), new(Registry)
	r := &rig{half: make(chan struct{}), near: watchOn(t, here, &tappb.WatchRequest{Fields: true}), far: watchOn(t, there, &tappb.WatchRequest{Fields: true})}
	l, err := net.Listen("tcp", freeport.Addr(t))
	require.NoError(t, err)
	r.addr = l.Addr().String()
	r.server = grpc.NewServer(append(grpclayer.NewServer(Layer(there, grpclayer.GRPC{}, Inbound)).ServerOptions(), sopts...)...)
	testpb.RegisterTestServiceServer(r.server, interop{half: r.half})
	var served sync.WaitGroup
	served.Go(func() { _ = r.server.Serve(l) })
	t.Cleanup(func() { r.server.Stop(); served.Wait() })
	r.conn, err = grpc.NewClient(r.addr, append(grpclayer.NewClient(Layer(here, grpclayer.GRPC{}, Outbound)).DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.conn.Close() })
	r.client = testpb.NewTestServiceClient(r.conn)
	return r
}

// calls are the four shapes, each to its end.
func (r *rig) calls() map[string]func(ctx context.Context, opts ...grpc.CallOption) error {
	return map[string]func(ctx context.Context, opts ...grpc.CallOption) error{
		"UnaryCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := r.client.UnaryCall(ctx, new(testpb.SimpleRequest), opts...)
			return err
		},
		"StreamingOutputCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest), opts...)
			if err != nil {
				return err
			}
			return drain(s.Recv)
		},
		"StreamingInputCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.StreamingInputCall(ctx, opts...)
			if err != nil {
				return err
			}
			_ = s.Send(new(testpb.StreamingInputCallRequest))
			_, err = s.CloseAndRecv()
			return err
		},
		"FullDuplexCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.FullDuplexCall(ctx, opts...)
			if err != nil {
				return err
			}
			_ = s.Send(new(testpb.StreamingOutputCallRequest))
			_ = s.CloseSend()
			return drain(s.Recv)
		},
	}
}

func drain[M any](recv func() (M, error)) error {
	for {
		switch _, err := recv(); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// Calls of all four kinds, successful and failed, as their client and their server see
// them.
func TestGRPCEvents(t *testing.T) {
	bytes := map[string]uint64{"UnaryCall": 5 + 4, "StreamingOutputCall": 2 * 5, "StreamingInputCall": 5 + 2, "FullDuplexCall": 5}
	r := newRig(t)
	close(r.half)
	for shape, run := range r.calls() {
		for _, fail := range []bool{false, true} {
			t.Run(shape+map[bool]string{true: "/fails"}[fail], func(t *testing.T) {
				ctx, want, code := t.Context(), bytes[shape], codes.OK
				if fail {
					ctx, code = metadata.AppendToOutgoingContext(ctx, "fail", "yes"), codes.NotFound
					if shape == "UnaryCall" || shape == "StreamingInputCall" {
						want = 0
					}
				}
				var p peer.Peer
				err := run(ctx, grpc.Peer(&p))
				require.Equal(t, code, status.Code(err))
				for side, w := range map[string]*watcher{"client": r.near, "server": r.far} {
					got := readAll(w)
					require.Equal(t, "qre", kinds(got), side)
					e := got[0]
					require.Equal(t, r.addr, e.Destination.String(), side)
					require.Equal(t, "POST", e.RequestInit.Method)
					require.Equal(t, r.addr, e.RequestInit.Authority, side)
					require.Equal(t, "/grpc.testing.TestService/"+shape, e.RequestInit.Path)
					require.Equal(t, 200, got[1].ResponseInit.Status)
					end := got[2].ResponseEnd
					require.NotNil(t, end.GRPCStatus, side)
					require.Equal(t, code, *end.GRPCStatus, side)
					require.Nil(t, end.ResetCode)
					require.Equal(t, want, end.Bytes, side)
					if side == "server" {
						require.Equal(t, p.LocalAddr.String(), e.Source.String())
						require.Equal(t, map[string]string{"tls": "loopback"}, e.SourceLabels)
					}
					if shape == "StreamingInputCall" {
						require.Contains(t, got[1].ResponseInit.Headers, Field{"color", "red"}, side)
					}
					if shape == "StreamingOutputCall" {
						require.Contains(t, got[1].ResponseInit.Headers, Field{"color", "blue"}, side)
						require.Contains(t, end.Trailers, Field{"sum", "2"}, side)
					}
				}
			})
		}
	}
}

// A response starts with the first message, not with the open stream.
func TestGRPCStreamDurations(t *testing.T) {
	r := newRig(t)
	s, err := r.client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
	require.NoError(t, err)
	require.Equal(t, "q", kinds(readAll(r.near)), "there is no header yet")
	_, err = s.Recv()
	require.NoError(t, err)
	for _, w := range []*watcher{r.near, r.far} {
		got := readAll(w)
		require.Equal(t, "r", kinds(got[len(got)-1:]))
	}
	began := time.Now()
	_, err = s.Header()
	require.NoError(t, err)
	pause := time.Since(began)
	close(r.half)
	require.NoError(t, drain(s.Recv))
	for _, w := range []*watcher{r.near, r.far} {
		got := readAll(w)
		require.Equal(t, "e", kinds(got))
		require.GreaterOrEqual(t, *got[0].ResponseEnd.SinceResponseInit, pause)
	}
}

// A call without a response has no ResponseInit.
func TestGRPCWithoutResponse(t *testing.T) {
	r := newRig(t)
	t.Run("the client leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := r.client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		cancel()
		require.Equal(t, codes.Canceled, status.Code(drain(s.Recv)))
		// The end may come in another goroutine, which saw ctx end first.
		require.Eventually(t, func() bool { return r.near.inFlight.Load() == 0 }, 20*time.Second, time.Millisecond)
		got := readAll(r.near)
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, uint32(8), *got[2].ResponseEnd.ResetCode)
		require.Nil(t, got[2].ResponseEnd.GRPCStatus)
		require.Eventually(t, func() bool { return r.far.inFlight.Load() == 0 }, 20*time.Second, time.Millisecond)
		got = readAll(r.far)
		require.Equal(t, uint32(8), *got[len(got)-1].ResponseEnd.ResetCode)
	})
	t.Run("the server is not there", func(t *testing.T) {
		r.server.Stop()
		for shape, run := range r.calls() {
			require.Equal(t, codes.Unavailable, status.Code(run(t.Context())), shape)
			got := readAll(r.near)
			require.Equal(t, "qe", kinds(got), shape)
			require.Nil(t, got[1].ResponseEnd.GRPCStatus)
		}
	})
}

// Rows of Top have the same outcome as events.
func TestGRPCTop(t *testing.T) {
	there := new(Registry)
	rows := countAll(t, there, nil).rows
	svc := grpclayer.NewServer(Layer(there, grpclayer.GRPC{}, Inbound))
	info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}
	for _, code := range []codes.Code{codes.OK, codes.NotFound, codes.Internal} {
		_, _ = svc.Unary(t.Context(), nil, info, func(context.Context, any) (any, error) {
			return new(testpb.Empty), status.Error(code, "as told")
		})
	}
	row := rows.answer(1).GetRows()[0]
	require.EqualValues(t, 3, row.GetCount())
	require.EqualValues(t, 2, row.GetSuccesses())
}
