package httpclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/oauth2"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve/dns"
)

// The client follows a DNS name while its records change: here from one server to another.
func Example_changingDNS() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, stopFirst := hello("first")
	defer stopFirst()
	second, stopSecond := hello("second")
	defer stopSecond()

	var record atomic.Value // what the DNS server answers
	record.Store(first)
	names := dns.New(dns.WithServers(serveDNS(ctx, &record)),
		dns.WithRefresh(time.Millisecond, time.Millisecond)) // the default is the TTL, or 5 s if that is longer
	web := httpclient.New(ctx, "_http._tcp.web.test", httpclient.WithResolver(names))
	c := &http.Client{Transport: web}
	show(c, "http://web.test/")

	record.Store(second)
	for e := web.Endpoints(); len(e) != 1 || e[0].ID.Addr.String() != second; e = web.Endpoints() {
		time.Sleep(time.Millisecond)
	}
	show(c, "http://web.test/")
	// Output:
	// 200 first
	// 200 second
}

// An upload is sent again after a failure. A POST is only if it has an Idempotency-Key, because the server might
// otherwise execute it twice. A body of up to 64 KiB is kept for that; http.NewRequest sets GetBody for a larger one.
func Example_upload() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%d bytes with key %s", n, r.Header.Get("Idempotency-Key"))
	}))
	defer s.Close()
	file := bytes.Repeat([]byte("x"), 1<<20)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/photos", bytes.NewReader(file))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Idempotency-Key", "7f3a")
	rsp, err := (&http.Client{Transport: httpclient.NewTransport(ctx)}).Do(req)
	if err != nil {
		panic(err)
	}
	defer rsp.Body.Close()
	text, _ := io.ReadAll(rsp.Body)
	fmt.Println(requests.Load(), "attempts:", string(text))
	// Output: 2 attempts: 1048576 bytes with key 7f3a
}

// A download continues where the connection broke. No time limit applies to the body.
func Example_download() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	file := strings.Repeat("gotower ", 100_000)
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(file)))
			_, _ = io.WriteString(w, file[:300_000]) // and then the connection breaks
			return
		}
		http.ServeContent(w, r, "file.txt", time.Time{}, strings.NewReader(file))
	}))
	defer s.Close()
	c := &http.Client{Transport: httpclient.NewTransport(ctx)}
	var got strings.Builder
	for got.Len() < len(file) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", got.Len()))
		rsp, _ := c.Do(req)
		n, err := io.Copy(&got, rsp.Body)
		rsp.Body.Close()
		fmt.Println(rsp.StatusCode, n, "bytes, broken:", errors.Is(err, io.ErrUnexpectedEOF))
	}
	fmt.Println(got.String() == file)
	// Output:
	// 200 300000 bytes, broken: true
	// 206 500000 bytes, broken: false
	// true
}

// A client trusts the certificates of its own authority only.
func Example_ownCA() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.ServerName) }))
	defer s.Close()
	ca := x509.NewCertPool()
	ca.AddCert(s.Certificate()) // in a program: AppendCertsFromPEM
	c := &http.Client{Transport: httpclient.NewTransport(ctx,
		httpclient.WithTLS(&tls.Config{RootCAs: ca, MinVersion: tls.VersionTLS13}),
		httpclient.WithHosts(func(string) ([]httpclient.Option, error) {
			return []httpclient.Option{httpclient.WithAddrs(s.Listener.Addr().String())}, nil
		}))}
	show(c, "https://www.example.com/")
	// Output: 200 www.example.com
}

// The environment selects a proxy, as for http.DefaultTransport.
func Example_proxy() {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "by the proxy: "+r.RequestURI)
	}))
	defer proxy.Close()
	direct, stop := hello("direct")
	defer stop()
	os.Setenv("HTTP_PROXY", proxy.URL)
	os.Setenv("NO_PROXY", "127.0.0.0/8")
	defer os.Unsetenv("HTTP_PROXY")
	defer os.Unsetenv("NO_PROXY")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &http.Client{Transport: httpclient.NewTransport(ctx)}
	show(c, "http://web.test/page")
	show(c, "http://"+direct+"/")
	// Output:
	// 200 by the proxy: http://web.test/page
	// 200 direct
}

// A client with a token of OAuth 2.0.
func Example_oauth2() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("Authorization"))
	}))
	defer s.Close()
	source := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "secret"}) // in a program: of package clientcredentials
	show(&http.Client{Transport: &oauth2.Transport{Source: source, Base: httpclient.NewTransport(ctx)}}, s.URL)
	// Output: 200 Bearer secret
}

// A client with the metrics of package promhttp. See WithMetrics for those of the layers and endpoints.
func Example_promhttp() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, stop := hello("hello")
	defer stop()
	registry := prometheus.NewRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "client_requests_total", Help: "Requests."}, []string{"code", "method"})
	registry.MustRegister(requests)
	show(&http.Client{Transport: promhttp.InstrumentRoundTripperCounter(requests, httpclient.NewTransport(ctx))}, "http://"+addr)

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	fmt.Println(strings.Contains(page.Body.String(), `client_requests_total{code="200",method="get"} 1`))
	// Output:
	// 200 hello
	// true
}

// A gateway stops without losing a request: its server waits for the requests in progress, then its client ends.
func Example_shutdown() {
	ctx, cancel := context.WithCancel(context.Background()) // not that of signal.NotifyContext, which ends first
	defer cancel()
	began, end := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-end
		io.WriteString(w, "done")
	}))
	defer upstream.Close()
	web := httpclient.New(ctx, upstream.Listener.Addr().String())
	front := httptest.NewServer(httplayer.Handler(web))
	shown := make(chan struct{})
	go func() { show(http.DefaultClient, front.URL); close(shown) }()
	<-began // a request is in progress, and a signal arrives
	stopped := make(chan error)
	front.Config.RegisterOnShutdown(func() { close(end) })
	go func() { stopped <- front.Config.Shutdown(ctx) }()
	<-shown
	fmt.Println(<-stopped)
	cancel() // the connections to the upstream close
	// Output:
	// 200 done
	// <nil>
}

// In a test, the code under test uses the names of production. They lead to servers of package httptest, and no
// request reaches another server.
func Example_httptest() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	books := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "books of "+r.Host) }))
	defer books.Close()
	hosts := httpclient.OnlyHosts(map[string][]httpclient.Option{"books.default": {httpclient.WithAddrs(books.Listener.Addr().String())}})
	c := &http.Client{Transport: httpclient.NewTransport(ctx, httpclient.WithHosts(hosts))}
	show(c, "http://books.default/")
	show(c, "http://users.default/")
	// Output:
	// 200 books of books.default
	// Get "http://users.default/": httpclient: host users.default:80: not a known host
}

// serveDNS starts a DNS server of SRV records and returns its address. Its answer to any name is the address in record.
func serveDNS(ctx context.Context, record *atomic.Value) netip.AddrPort {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	answer := func(packet []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(packet) != nil {
			return nil
		}
		m.Response = true
		m.Additionals = nil
		q := m.Questions[0]
		addr := netip.MustParseAddrPort(record.Load().(string))
		head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch q.Type {
		case dnsmessage.TypeSRV:
			srv := &dnsmessage.SRVResource{Port: addr.Port(), Target: dnsmessage.MustNewName("host.web.test.")}
			m.Answers = []dnsmessage.Resource{{Header: head, Body: srv}}
		case dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: addr.Addr().As4()}}}
		}
		packet, _ = m.Pack()
		return packet
	}
	go func() {
		packet := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(answer(packet[:n]), from)
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}
