package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A field that is set or removed does not arrive in another spelling or as a trailer.
func TestEditRequestSpellings(t *testing.T) {
	for _, protocol := range []string{"announced", "not announced"} {
		header := http.Header{"X-User": {"root"}, "X_user": {"root"}, "X_Internal-Id": {"1"}, "X-Other": {"1"}, "X_other": {"2"}, "X_y": {"1"}}
		came := http.Header{}
		if protocol == "announced" {
			came["X_User"], came["X-Sum"] = nil, nil
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", strings.NewReader("hello"))
		require.NoError(t, err)
		req.Header, req.Trailer = header, came
		req.Body = &trailing{req.Body, func() {
			came["X-User"], came["X_user"], came["X-Internal-Id"], came["X-Sum"] = []string{"root"}, []string{"root"}, []string{"1"}, []string{"2"}
		}}
		out := HTTP{}.EditRequest(req, layer.HeaderMutation{Add: pairs("X-Other", "3", "X-New", "4"), Set: pairs("X-User", "me"), Remove: []string{"x-internal-id", "X-Y"}})
		assert.Equal(t, http.Header{"X-User": {"me"}, "X-Other": {"1", "3"}, "X_other": {"2"}, "X-New": {"4"}}, out.Header)
		assert.Equal(t, []string{"root"}, header["X_user"], "the request is untouched")
		_, err = io.ReadAll(out.Body)
		require.NoError(t, err)
		assert.Equal(t, http.Header{"X-Sum": {"2"}}, out.Trailer, protocol)
		assert.Len(t, came, map[string]int{"announced": 5, "not announced": 4}[protocol])
	}
	assert.True(t, sameField("X-User_Id", "x_user-id"))
	assert.False(t, sameField("X-User", "X-UserA"))
	assert.False(t, sameField("X-User", "XaUser"))
}

func TestDropRequestTrailers(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		got := make(chan http.Header, 1)
		up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			got <- r.Trailer
		}))
		f := servingBy(t, Handler(NewStack().With("trailers", DropRequestTrailers()).Service(endpoint(t, up))))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.addr+"/", io.MultiReader(strings.NewReader("hello")))
		require.NoError(t, err)
		req.Trailer = http.Header{"X-User": {"root"}}
		rsp, err := client(t, h2).Do(req)
		require.NoError(t, err)
		rsp.Body.Close()
		assert.Empty(t, <-got)
	}
}

// 1xx responses of a service below do not reach the client of the Handler.
func TestDropInformational(t *testing.T) {
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</secret>")
		w.WriteHeader(http.StatusEarlyHints)
	}))
	for name, want := range map[string]int{"forwards": 1, "drops": 0} {
		st := NewStack()
		if name == "drops" {
			st = st.With("drop", DropInformational())
		}
		f := servingBy(t, Handler(st.Service(endpoint(t, up))))
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
			hints++
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.addr+"/", http.NoBody)
		require.NoError(t, err)
		rsp, err := client(t, false).Do(req)
		require.NoError(t, err)
		rsp.Body.Close()
		assert.Equal(t, want, hints, name)
	}
}

// Fields about the certificate of a client are those of a trusted peer, or none.
func TestForwardedClientIdentity(t *testing.T) {
	spoofed := http.Header{}
	for _, name := range []string{"Client-Cert", "Client_cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "Ssl-Client-Verify", "X-Ssl-Client-Dn", "X_ssl_client_cert"} {
		spoofed[name] = []string{":AAAA:"}
	}
	forward := func(l Layer, peer string) http.Header {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web/", http.NoBody)
		require.NoError(t, err)
		req.Header, req.RemoteAddr, req.RequestURI = spoofed.Clone(), net.JoinHostPort(peer, "1000"), "/"
		var got http.Header
		_, err = l(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
			got = r.Header
			return newResponse(r, http.StatusOK, http.Header{}), nil
		})).Call(t.Context(), req)
		require.NoError(t, err)
		return got
	}
	trusted := netip.MustParsePrefix("10.0.0.0/8")
	for name := range spoofed {
		assert.NotContains(t, forward(Forwarded(trusted), "192.0.2.1"), name)
		assert.Contains(t, forward(Forwarded(trusted), "10.0.0.1"), name)
	}
	for _, name := range []string{"Client-Cert", "Client_cert", "Client-Cert-Chain"} {
		assert.NotContains(t, forward(ForwardClientCertificate(CertificateWithChain, trusted), "192.0.2.1"), name)
		assert.Contains(t, forward(ForwardClientCertificate(CertificateWithChain, trusted), "10.0.0.1"), name)
	}
}
