// Command clients compares http.Transport, go-retryablehttp and httpclient, each with its defaults,
// in one program. It prints two tables in Markdown: what each does in the same situations, and what
// each costs. All cells are measured.
//
//	go -C test/clients run . >clients.md
//
// It takes three minutes on an idle machine, because go-retryablehttp waits between its attempts.
// httplb is missing, because its module is not available from the module proxy.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/resolve/dns"
)

// subject is one of the compared clients.
type subject struct {
	name    string
	program string // the directory of its smallest program
	make    func(ctx context.Context, s settings) *http.Client
}

// settings are the parts of a situation that a client must know.
type settings struct {
	names *names         // the DNS server; nil means the system's
	roots *x509.CertPool // may be nil
}

// transport returns an http.Transport with http.DefaultTransport's settings.
func (s settings) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if s.roots != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: s.roots}
	}
	if s.names != nil {
		// Every query goes to the test's name server, whatever server the system names.
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.names.addr.String())
		}}
		t.DialContext = (&net.Dialer{Resolver: resolver}).DialContext
	}
	return t
}

// subjects returns the clients to compare, with their default settings.
func subjects() []subject {
	return []subject{
		{"http.Transport", "nethttp", func(_ context.Context, s settings) *http.Client {
			return &http.Client{Transport: s.transport()}
		}},
		{"go-retryablehttp", "retryablehttp", func(_ context.Context, s settings) *http.Client {
			c := retryablehttp.NewClient()
			c.Logger = nil
			c.HTTPClient.Transport = s.transport()
			return c.StandardClient()
		}},
		{"httpclient.NewTransport", "httpclient", func(ctx context.Context, s settings) *http.Client {
			var opts []httpclient.Option
			if s.roots != nil {
				opts = append(opts, httpclient.WithTLS(&tls.Config{RootCAs: s.roots}))
			}
			if s.names != nil {
				opts = append(opts, httpclient.WithResolver(dns.New(dns.WithServers(s.names.addr))))
			}
			return &http.Client{Transport: httpclient.NewTransport(ctx, opts...)}
		}},
	}
}

// proxied is the only host that is reached through a proxy.
const proxied = "proxied.example"

func main() {
	// The program starts itself again with this argument, to be the server in a process of its own.
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serveHello()
		return
	}
	// Behaviors that use no proxy have hosts below .test.
	proxy := newProxy()
	for name, value := range map[string]string{"HTTP_PROXY": proxy, "NO_PROXY": ".test"} {
		if err := os.Setenv(name, value); err != nil {
			log.Fatal(err)
		}
	}
	clients := subjects()
	fmt.Println(row("", clients, func(s subject) string { return s.name }))
	fmt.Println("|---" + strings.Repeat("|---", len(clients)) + "|")
	for _, b := range behaviors {
		fmt.Println(row(b.situation, clients, func(s subject) string { return observe(s, b.run) }))
	}
	fmt.Println()
	costs := measure(clients)
	fmt.Println(row("", clients, func(s subject) string { return s.name }))
	fmt.Println("|---" + strings.Repeat("|--:", len(clients)) + "|")
	for _, c := range []struct {
		title string
		text  func(cost) string
	}{
		{"CPU per GET of 5 bytes (median)", func(c cost) string { return fmt.Sprintf("%.1f µs", c.cpu) }},
		{"CPU, relative", func(c cost) string { return fmt.Sprintf("%.2f", c.cpu/costs[clients[0].name].cpu) }},
		{"allocations per GET", func(c cost) string { return fmt.Sprintf("%.0f", c.allocations) }},
		{"smallest program, stripped", func(c cost) string { return fmt.Sprintf("%.1f MB", c.size) }},
		{"modules in it", func(c cost) string { return fmt.Sprint(c.modules) }},
	} {
		fmt.Println(row(c.title, clients, func(s subject) string { return c.text(costs[s.name]) }))
	}
}

func row(title string, clients []subject, cell func(subject) string) string {
	line := "| " + title
	for _, s := range clients {
		line += " | " + cell(s)
	}
	return line + " |"
}

// observe returns what run observes with new clients of s.
func observe(s subject, run func(newClient func(settings) *http.Client) string) string {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	return run(func(set settings) *http.Client { return s.make(ctx, set) })
}
