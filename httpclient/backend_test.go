package httpclient_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve/static"
)

// A request fails at once, as with net/http, if it is certain that no endpoint can serve it. In the queue it would wait
// for an hour.
func TestFailsAtOnce(t *testing.T) {
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	slowly := []httpclient.Option{httpclient.WithQueue(1000, time.Hour), httpclient.WithTimeout(0)}
	refused := func() *httpclient.Client {
		return httpclient.New(t.Context(), "web", append(slowly, httpclient.WithAddrs(freeport.Addr(t), freeport.Addr(t)))...)
	}
	none := httpclient.New(t.Context(), "web", append(slowly, httpclient.WithResolver(static.New(nil)))...)
	transport := httpclient.NewTransport(t.Context(), slowly...)
	for name, tt := range map[string]struct {
		rt  http.RoundTripper
		url string
		is  error
		as  any
	}{
		"refused":                   {rt: refused(), url: "http://web/", is: syscall.ECONNREFUSED},
		"refused, Transport":        {rt: transport, url: "http://" + freeport.Addr(t) + "/", is: syscall.ECONNREFUSED},
		"refused, net/http":         {rt: http.DefaultTransport, url: "http://" + freeport.Addr(t) + "/", is: syscall.ECONNREFUSED},
		"certificate":               {rt: transport, url: untrusted.URL, as: new(x509.UnknownAuthorityError)},
		"certificate, net/http":     {rt: http.DefaultTransport, url: untrusted.URL, as: new(x509.UnknownAuthorityError)},
		"the target does not exist": {rt: none, url: "http://web/", is: discover.ErrDoesNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodGet} {
				req, err := http.NewRequestWithContext(ctx, method, tt.url, http.NoBody)
				require.NoError(t, err)
				rsp, err := client(t, tt.rt).Do(req)
				if err == nil {
					require.NoError(t, rsp.Body.Close())
				}
				switch {
				case tt.is != nil:
					require.ErrorIs(t, err, tt.is)
				default:
					require.ErrorAs(t, err, tt.as)
				}
			}
		})
	}
}

// With WithWaitForReady, a request waits while the only server does not listen.
func TestWaitForReady(t *testing.T) {
	addr, down := freeport.Addr(t), make(chan error, 100)
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(addr), httpclient.WithWaitForReady(),
		httpclient.WithQueue(1, time.Minute), httpclient.WithTimeout(0), httpclient.WithEvents(func(e httpclient.Event) {
			if e.Kind == httpclient.TargetDown {
				down <- e.Err
			}
		}))
	result := make(chan error)
	go func() {
		rsp, err := client(t, web).Get("http://web/")
		if err == nil {
			err = rsp.Body.Close()
		}
		result <- err
	}()
	require.ErrorIs(t, <-down, layer.ErrNotReady)
	select {
	case err := <-result:
		require.Fail(t, "the request has not waited", "%v", err)
	default:
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	require.NoError(t, s.Listener.Close())
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	require.NoError(t, <-result)
}
