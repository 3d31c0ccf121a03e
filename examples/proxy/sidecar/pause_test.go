package sidecar_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// pausing is a mesh in front of app whose inbound side allows no pauses in uploads from clients
// without an identity.
func pausing(t testing.TB, app string, hints ...func(*destination.WeightedAddr)) (outbound, inbound string) {
	t.Helper()
	m := meshOf(t, "")
	b := newTestProxy(t, m.ctl.addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = fixed(app)
		c.Settings.Inbound.BodyIdle = 20 * time.Millisecond
	})
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.answer(t, endpointAt(b.Inbound, append(hints, proves(serverName))...))
	return m.a.Addr, b.Inbound
}

// late starts an upload from a client without an identity, and returns when the proxy has rejected
// it because of a pause.
func late(t testing.TB, inbound string) {
	t.Helper()
	first, _, _ := dialWire(t, inbound).ask(t, "POST / HTTP/1.1\nHost: web\nContent-Length: 10\n\nhello")
	require.Equal(t, "HTTP/1.1 408 Request Timeout", first)
}

// uploaded is an application that responds with the request body.
func uploaded(t testing.TB) (addr string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// Applications in the mesh may pause for any time, with or without a length.
func TestMeshedUploadPause(t *testing.T) {
	t.Parallel()
	hinted(t, func(t *testing.T, hints ...func(*destination.WeightedAddr)) {
		outbound, inbound := pausing(t, uploaded(t), hints...)
		for name, parts := range map[string][2]string{
			"length": {"Content-Length: 10\r\n\r\nhello", "world"},
			"chunks": {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "5\r\nworld\r\n0\r\n\r\n"},
		} {
			t.Run(name, func(t *testing.T) {
				w := dialWire(t, outbound)
				say(w, "POST / HTTP/1.1\r\nHost: web.example\r\n"+parts[0])
				late(t, inbound)
				late(t, inbound)
				say(w, parts[1])
				rsp, err := http.ReadResponse(w.in, nil)
				require.NoError(t, err)
				body, err := io.ReadAll(rsp.Body)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				require.Equal(t, http.StatusOK, rsp.StatusCode)
				require.Equal(t, "helloworld", string(body))
			})
		}
	})
}

// gRPC and HTTP/2 streams without a length may be silent for minutes.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, e := grpc.NewServer(), &echo{left: make(chan struct{}, 1)}
	srv.RegisterService(e.desc(), e)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	spoken, served := pausing(t, l.Addr().String(), speaksH2)
	web, uploads := pausing(t, uploaded(t), speaksH2)
	for name, proxy := range map[string]string{"through the mesh": spoken, "of a stranger": served} {
		t.Run("gRPC "+name, func(t *testing.T) {
			conn, err := grpc.NewClient("passthrough:///"+proxy, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
			require.NoError(t, err)
			for _, word := range []string{"one", "two", "three"} {
				chat(t, stream, word)
				late(t, uploads)
			}
			require.NoError(t, stream.CloseSend())
			require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
		})
	}
	for name, proxy := range map[string]string{"through the mesh": web, "of a stranger": uploads} {
		t.Run("HTTP/2 "+name, func(t *testing.T) {
			body, more := io.Pipe()
			answers := make(chan string, 1)
			c := h2Client(t, proxy)
			go func() {
				rsp, err := c.Post("http://web.example/", "text/plain", body)
				if err != nil {
					answers <- err.Error()
					return
				}
				defer rsp.Body.Close()
				got, err := io.ReadAll(rsp.Body)
				answers <- string(got) + errorText(err)
			}()
			say(more, "hello")
			late(t, uploads)
			say(more, "world")
			require.NoError(t, more.Close())
			require.Equal(t, "helloworld", <-answers)
		})
	}
}
