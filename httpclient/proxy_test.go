package httpclient_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
)

// proxy is a forward proxy. It forwards each request to the server at the address to.
func proxy(t *testing.T, secure bool, to string, uses *atomic.Int64) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uses.Add(1)
		if user, password, ok := proxyUser(r); !ok || user != "joe" || password != "secret" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		up, err := net.Dial("tcp", to)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer up.Close()
		if r.Method != http.MethodConnect {
			w.Header().Set("Via", r.RequestURI)
			_ = r.Write(up)
			rsp, err := http.ReadResponse(bufio.NewReader(up), r)
			if err == nil {
				w.WriteHeader(rsp.StatusCode)
				_, _ = io.Copy(w, rsp.Body)
				rsp.Body.Close()
			}
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, buffered) }()
		_, _ = io.Copy(conn, up)
	}))
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func proxyUser(r *http.Request) (user, password string, ok bool) {
	with := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	return with.BasicAuth()
}

// Requests go by proxies as those of http.Transport, and the proxy resolves the name.
func TestTransportProxy(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "plain") }))
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	trusting := secure.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	for name, overTLS := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			for target, want := range map[string]string{"http://example.com/path?q=1": "plain", "https://example.com/": "HTTP/2.0"} {
				var uses atomic.Int64
				to := plain
				if target[:5] == "https" {
					to = secure
				}
				p := proxy(t, overTLS, to.Listener.Addr().String(), &uses)
				u, err := url.Parse(p.URL)
				require.NoError(t, err)
				u.User = url.UserPassword("joe", "secret")
				cfg := trusting.Clone()
				if overTLS {
					cfg.RootCAs.AddCert(p.Certificate())
				}
				for rt, c := range map[string]*http.Client{
					"theirs": {Transport: &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: cfg, ForceAttemptHTTP2: true}},
					"ours":   {Transport: httpclient.NewTransport(t.Context(), httpclient.WithTLS(cfg), httpclient.WithProxy(http.ProxyURL(u)))},
				} {
					before := uses.Load()
					rsp, err := c.Do(get(t, target))
					require.NoError(t, err, rt)
					text, err := io.ReadAll(rsp.Body)
					require.NoError(t, err)
					require.NoError(t, rsp.Body.Close())
					require.Equal(t, want, string(text), rt)
					require.Equal(t, before+1, uses.Load(), rt)
					if to == plain {
						require.Equal(t, target, rsp.Header.Get("Via"), rt)
					}
					c.CloseIdleConnections()
				}
			}
		})
	}
}

// A proxy gets the same target and client certificate as from http.Transport, and is verified alike.
func TestTransportProxyTarget(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, target := range []string{
			"http://b\u00fccher.example/x?q", "https://b\u00fccher.example/", "http://EXAMPLE.com:80", "https://bu\u0308cher.example/",
			"https://[::1]/", "http://[::1]:81/",
		} {
			t.Run(fmt.Sprint(secure, " ", target), func(t *testing.T) {
				asked := make(chan string, 100)
				p := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					line := fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host)
					if r.TLS != nil {
						line += fmt.Sprint(" ", len(r.TLS.PeerCertificates))
					}
					asked <- line
					w.WriteHeader(http.StatusNotFound)
				}))
				if secure {
					p.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
					p.StartTLS()
				} else {
					p.Start()
				}
				t.Cleanup(p.Close)
				u, err := url.Parse(p.URL)
				require.NoError(t, err)
				// A proxy with a certificate that nobody knows.
				cfg := &tls.Config{InsecureSkipVerify: true}
				if secure {
					cfg.Certificates = p.TLS.Certificates
				}
				theirs := client(t, &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: cfg.Clone()})
				ours := client(t, httpclient.NewTransport(t.Context(), httpclient.WithTLS(cfg), httpclient.WithProxy(http.ProxyURL(u))))
				var want string
				for _, c := range []*http.Client{theirs, ours} {
					rsp, err := c.Do(get(t, target))
					if err == nil {
						require.NoError(t, rsp.Body.Close())
					}
					require.NotEmpty(t, asked, err)
					if want == "" {
						want = <-asked
						continue
					}
					require.Equal(t, want, <-asked)
				}
			})
		}
	}
}

// A proxy that refuses is named in the error.
func TestTransportProxyRefuses(t *testing.T) {
	var uses atomic.Int64
	p := proxy(t, false, "", &uses)
	u, err := url.Parse(p.URL)
	require.NoError(t, err)
	c := client(t, httpclient.NewTransport(t.Context(), httpclient.WithProxy(http.ProxyURL(u))))
	_, err = c.Do(get(t, "https://example.com/"))
	require.ErrorContains(t, err, "407 Proxy Authentication Required")
	rsp, err := c.Do(get(t, "http://example.com/"))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, http.StatusProxyAuthRequired, rsp.StatusCode)
	for _, wrong := range []string{"ftp://web:1", "http:///x"} {
		u, err := url.Parse(wrong)
		require.NoError(t, err)
		_, err = client(t, httpclient.NewTransport(t.Context(), httpclient.WithProxy(http.ProxyURL(u)))).Do(get(t, "http://example.com/"))
		require.ErrorContains(t, err, "the proxy "+wrong)
		require.Panics(t, func() { httpclient.New(t.Context(), "example.com", httpclient.WithProxy(http.ProxyURL(u))) })
	}
}

// The environment selects the proxy of a Transport, but not that of a client of one target.
func TestTransportProxyFromEnvironment(t *testing.T) {
	var uses atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "plain") }))
	t.Cleanup(plain.Close)
	p := proxy(t, false, plain.Listener.Addr().String(), &uses)
	u, err := url.Parse(p.URL)
	require.NoError(t, err)
	u.User = url.UserPassword("joe", "secret")
	t.Setenv("HTTP_PROXY", u.String())
	t.Setenv("NO_PROXY", "direct.example")
	hosts := httpclient.WithHosts(func(host string) ([]httpclient.Option, error) {
		if host == "known.example:80" || host == "direct.example:80" {
			return []httpclient.Option{httpclient.WithTarget(plain.Listener.Addr().String())}, nil
		}
		return nil, nil
	})
	rt := httpclient.NewTransport(t.Context(), hosts)
	for target, want := range map[string]int64{"http://example.com/": 1, "http://direct.example/": 0, "http://known.example/": 0} {
		uses.Store(0)
		require.Equal(t, "plain", body(t, client(t, rt), target))
		require.Equal(t, want, uses.Load(), target)
	}
	uses.Store(0)
	web := httpclient.New(t.Context(), plain.Listener.Addr().String())
	require.Equal(t, "plain", body(t, client(t, web), "http://example.com/"))
	require.Zero(t, uses.Load())
	web = httpclient.New(t.Context(), "example.com", httpclient.WithProxy(http.ProxyURL(u)))
	require.Equal(t, "plain", body(t, client(t, web), "http://example.com/"))
	require.EqualValues(t, 1, uses.Load())
}

// A SOCKS5 proxy gets the name of the host.
func TestTransportSOCKS(t *testing.T) {
	plain := server(t, "plain", 0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	names := make(chan string, 10)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				head := make([]byte, 2) // version and number of methods
				_, _ = io.ReadFull(in, head)
				_, _ = in.Discard(int(head[1]))
				_, _ = conn.Write([]byte{5, 0})
				head = make([]byte, 5) // version, command, reserved, type of the address, length of the name
				_, _ = io.ReadFull(in, head)
				name := make([]byte, int(head[4])+2)
				_, _ = io.ReadFull(in, name)
				names <- string(name[:head[4]])
				up, err := net.Dial("tcp", plain)
				if err != nil {
					return
				}
				defer up.Close()
				_, _ = conn.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 80})
				go func() { _, _ = io.Copy(up, in) }()
				_, _ = io.Copy(conn, up)
			}()
		}
	}()
	u := &url.URL{Scheme: "socks5", Host: l.Addr().String()}
	c := client(t, httpclient.NewTransport(t.Context(), httpclient.WithProxy(http.ProxyURL(u))))
	require.Equal(t, "plain", body(t, c, "http://example.com/"))
	require.Equal(t, "example.com", <-names)
}
