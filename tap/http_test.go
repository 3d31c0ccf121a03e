package tap

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

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
	w.Service = Layer(p.reg, httplayer.Accessor{}, Inbound, WithDestination(w.addr, nil))(
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
	svc := Layer(reg, httplayer.Accessor{})(layer.Func[*http.Request, *http.Response](
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
