package httpclient_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
)

// A Transport reaches known hosts by their options and all others by their names. Redirects and cookies cross
// hosts as with http.DefaultTransport.
func TestTransportHosts(t *testing.T) {
	other := server(t, "other", 0)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		http.Redirect(w, r, "http://"+other+"/", http.StatusFound)
	}))
	t.Cleanup(moved.Close)
	known := httpclient.OnlyHosts(map[string][]httpclient.Option{
		"web.default":      {httpclient.WithAddrs(server(t, "web", 0))},
		"web.default:8080": {httpclient.WithAddrs(server(t, "admin", 0))},
		"moved.default":    {httpclient.WithTarget(moved.Listener.Addr().String())},
		"[::1]":            {httpclient.WithAddrs(server(t, "six", 0))},
	})
	hosts := func(host string) ([]httpclient.Option, error) {
		opts, err := known(host)
		if err != nil && strings.HasSuffix(host, ".refused:80") {
			return nil, err
		}
		return opts, nil
	}
	rt := httpclient.NewTransport(t.Context(), httpclient.WithHosts(hosts))
	c := client(t, rt)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c.Jar = jar
	_, port, err := net.SplitHostPort(other)
	require.NoError(t, err)
	for url, want := range map[string]string{
		"http://web.default/":         "web",
		"http://WEB.default:81/":      "web",
		"http://web.default:8080/":    "admin",
		"http://moved.default/":       "other",
		"http://[::1]:9/":             "six",
		"http://localhost:" + port:    "other",
		"HTTP://" + other + "/?query": "other",
	} {
		require.Equal(t, want, body(t, c, url), url)
	}
	require.NotEmpty(t, jar.Cookies(get(t, "http://moved.default/").URL))
	_, err = c.Get("http://not.refused/")
	require.ErrorContains(t, err, "httpclient: host not.refused:80: not a known host")
	require.Contains(t, rt.Hosts(), "web.default:8080")
	require.Contains(t, rt.Describe().String(), "hosts=")
}

func TestTransportArguments(t *testing.T) {
	rt := httpclient.NewTransport(t.Context())
	for url, want := range map[string]string{
		"ftp://web/":             `the scheme of the URL is "ftp", want http or https`,
		"http:///path":           "the URL has no host",
		"http://web:http/":       "invalid port",
		"http://web:99999/":      "the port is not a number from 1 to 65535",
		"http://bad host.local/": "invalid character",
	} {
		_, err := client(t, rt).Get(url)
		require.ErrorContains(t, err, want, url)
	}
	_, err := rt.RoundTrip(&http.Request{})
	require.ErrorContains(t, err, "no URL")
	for _, key := range []string{"", "Web", "http://web", "web/x", "user@web"} {
		require.Panics(t, func() { httpclient.OnlyHosts(map[string][]httpclient.Option{key: nil}) }, key)
	}
	require.Panics(t, func() { httpclient.WithIdleHosts(0) })
}

// The client of an idle host is removed, but not that of a host with a request in progress.
func TestTransportRemovesIdleHosts(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-end
		_, _ = io.WriteString(w, "slow")
	}))
	t.Cleanup(slow.Close)
	idle := server(t, "idle", 0)
	rt := httpclient.NewTransport(t.Context(), httpclient.WithIdleHosts(10*time.Millisecond))
	c := client(t, rt)
	answer := make(chan string)
	go func() { answer <- body(t, c, slow.URL) }() //nolint:testifylint // the failure ends the wait for the answer
	<-began
	require.Equal(t, "idle", body(t, c, "http://"+idle+"/"))
	slowHost := []string{slow.Listener.Addr().String()}
	require.Eventually(t, func() bool { return len(rt.Hosts()) == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, slowHost, rt.Hosts())
	close(end)
	require.Equal(t, "slow", <-answer)
	require.Eventually(t, func() bool { return len(rt.Hosts()) == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, "idle", body(t, c, "http://"+idle+"/"), "the host has a new client")
}

// A response body lives longer than the client of its host.
func TestTransportKeepsBody(t *testing.T) {
	more := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first ")
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = io.WriteString(w, "last")
	}))
	t.Cleanup(s.Close)
	rt := httpclient.NewTransport(t.Context(), httpclient.WithIdleHosts(time.Millisecond))
	rsp, err := client(t, rt).Do(get(t, s.URL))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(rt.Hosts()) == 0 }, time.Minute, time.Millisecond)
	close(more)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, "first last", string(text))
}

// Requests that race with the removal of their host succeed.
func TestTransportRace(t *testing.T) {
	addr := server(t, "ok", 0)
	ctx, cancel := context.WithCancel(t.Context())
	rt := httpclient.NewTransport(ctx, httpclient.WithIdleHosts(time.Nanosecond))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c := &http.Client{Transport: rt}
			for range 50 {
				if got := body(t, c, "http://"+addr+"/"); got != "ok" {
					t.Error(got)
				}
			}
		})
	}
	all.Wait()
	cancel()
	require.Eventually(t, func() bool { return len(rt.Hosts()) == 0 }, time.Minute, time.Millisecond)
	_, err := rt.RoundTrip(get(t, "http://"+addr+"/"))
	require.ErrorIs(t, err, layer.ErrClosed)
}

// A crawler does not keep a client of each host.
func TestTransportManyHosts(t *testing.T) {
	addr := server(t, "ok", 0)
	rt := httpclient.NewTransport(t.Context(), httpclient.WithHosts(func(string) ([]httpclient.Option, error) {
		return []httpclient.Option{httpclient.WithAddrs(addr)}, nil
	}))
	c := client(t, rt)
	for i := range 1010 {
		name := strings.Repeat("a", 1+i%60) + "." + strings.Repeat("b", 1+i/60) + ".test"
		require.Equal(t, "ok", body(t, c, "http://"+name+"/"))
	}
	require.Len(t, rt.Hosts(), 1000)
}

// Metrics of a host that is gone are removed.
func TestTransportForgetsMetrics(t *testing.T) {
	addr := server(t, "ok", 0)
	m := &forgetting{forgotten: make(chan string, 10)}
	rt := httpclient.NewTransport(t.Context(), httpclient.WithIdleHosts(time.Millisecond), httpclient.WithMetrics(m))
	require.Equal(t, "ok", body(t, client(t, rt), "http://"+addr+"/"))
	require.Equal(t, addr, <-m.forgotten)
}

type forgetting struct{ forgotten chan string }

func (*forgetting) Layer(string) layer.Instruments     { return layer.Instruments{} }
func (*forgetting) Balance(string) balance.Instruments { return balance.Instruments{} }
func (m *forgetting) Forget(target string)             { m.forgotten <- target }
