package tap

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

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
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound))(handler))
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
		panic(http.ErrAbortHandler)
	})
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound))(mux))
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
	client := &http.Client{Transport: httplayer.Transport(Layer(reg, httplayer.Accessor{}, Outbound), nil)}
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
	server := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound))(
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
	client := &http.Client{Transport: httplayer.Transport(Layer(reg, httplayer.Accessor{}, Outbound), nil)}
	defer client.CloseIdleConnections()
	front := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound))(
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
