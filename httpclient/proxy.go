package httpclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/idna"
	"golang.org/x/net/proxy"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
)

// proxyTimeout limits the time to connect through a proxy. net/http sets the same limit for
// CONNECT.
const proxyTimeout = time.Minute

// maxConnectResponse is the largest size of the headers with which a proxy answers CONNECT.
const maxConnectResponse = 64 << 10

// WithProxy sets the function that returns the proxy for a request, or nil for none, as the field Proxy of
// [http.Transport]: [http.ProxyURL] and [http.ProxyFromEnvironment] are such functions. The schemes http,
// https and socks5 are supported. A client balances over the proxy's addresses, and the proxy resolves the
// host. A proxy with TLS is also connected to with the configuration of [WithTLS], except for its ServerName.
//
// [NewTransport] uses the environment (HTTP_PROXY, HTTPS_PROXY and NO_PROXY) by default, and [New] no proxy.
// New calls the function once, with the target, and panics if it returns an error. A nil function means no
// proxy. A host with [WithTarget], [WithAddrs] or [WithResolver] is reached without a proxy.
func WithProxy(f func(*http.Request) (*url.URL, error)) Option {
	return func(o *options) { o.proxy = f }
}

// fromEnvironment returns a function for WithProxy that uses the environment as it is now.
func fromEnvironment() func(*http.Request) (*url.URL, error) {
	f := httpproxy.FromEnvironment().ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return f(r.URL) }
}

// by changes o so that all connections to target go by the proxy u.
func (o *options) by(u *url.URL, target string) error {
	addr, err := proxyAddr(u)
	if err != nil {
		return err
	}
	// The connections go to the proxy, so it is the proxy's name that is resolved.
	names := o.resolver
	o.resolver = resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return names.Resolve(ctx, addr)
	})
	proxyOptions := []httplayer.EndpointOption{httplayer.WithConnectTimeout(proxyTimeout)}
	hop := &hop{proxy: u, target: inASCII(target)}
	if u.Scheme == "https" {
		hop.tls = new(tls.Config)
		if o.proxyTLS != nil {
			hop.tls = o.proxyTLS.Clone()
		}
		hop.tls.ServerName = u.Hostname()
		hop.tls.NextProtos = []string{"http/1.1"}
	}
	// For a cleartext target, an HTTP proxy takes requests with an absolute URL, and needs no tunnel.
	if o.tls == nil && u.Scheme != "socks5" && u.Scheme != "socks5h" {
		proxyOptions = append(proxyOptions, httplayer.WithHTTP1())
		o.absolute = proxied(hop.authorization())
		hop.target = ""
	}
	// The caller's options may change the timeout, but not the dialer.
	o.endpoints = append(append(proxyOptions, o.endpoints...), httplayer.WithDialContext(hop.dial))
	return nil
}

// proxyAddr returns the host and port of the proxy u.
func proxyAddr(u *url.URL) (string, error) {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	port, ok := ports[u.Scheme]
	switch {
	case !ok:
		return "", fmt.Errorf("the scheme of the proxy %s is %q, want http, https or socks5", u.Redacted(), u.Scheme)
	case u.Hostname() == "":
		return "", fmt.Errorf("the proxy %s has no host", u.Redacted())
	case u.Port() != "":
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// inASCII returns target, a host with or without a port, in the form that a proxy gets: an internationalized
// name begins with xn--, as in its certificate. A target that cannot be converted is returned unchanged.
func inASCII(target string) string {
	if !strings.ContainsFunc(target, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return target
	}
	host, port, found := strings.Cut(target, ":") // an internationalized name contains no colon
	ascii, err := idna.Lookup.ToASCII(host)
	switch {
	case err != nil:
		return target
	case found:
		return ascii + ":" + port
	}
	return ascii
}

// hop makes connections by a proxy: its method dial replaces the dialer of an endpoint, whose address
// is that of the proxy.
type hop struct {
	proxy  *url.URL
	tls    *tls.Config // for a connection to the proxy; nil means cleartext
	target string      // "" if the requests have the URL of the target instead
}

// dial connects to the address addr of the proxy, and asks the proxy to connect to the target.
func (h *hop) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if h.proxy.Scheme == "socks5" || h.proxy.Scheme == "socks5h" {
		return h.socks(ctx, network, addr)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	// The handshake and CONNECT must end with ctx. They fail when the connection is closed.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	if h.tls != nil {
		secure := tls.Client(conn, h.tls)
		err = secure.HandshakeContext(ctx)
		conn = secure
	}
	if err == nil && h.target != "" {
		err = h.connect(conn)
	}
	// The connection was closed because ctx has ended, which explains any other error.
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: %w", h.proxy.Redacted(), err)
	}
	return conn, nil
}

// connect sends a CONNECT request. The proxy sends nothing after its response until the client has sent
// something, because TLS begins with the client.
func (h *hop) connect(conn net.Conn) error {
	head := "CONNECT " + h.target + " HTTP/1.1\r\nHost: " + h.target + "\r\nUser-Agent: " + userAgent + "\r\n"
	if auth := h.authorization(); auth != "" {
		head += "Proxy-Authorization: " + auth + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return err
	}
	in := bufio.NewReader(io.LimitReader(conn, maxConnectResponse))
	rsp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return err
	case rsp.StatusCode/100 != 2:
		_ = rsp.Body.Close()
		return errors.New("the proxy has answered " + rsp.Status)
	// The bytes would be lost, because TLS reads from the connection and not from the buffer.
	case in.Buffered() > 0:
		return errors.New("the proxy has sent bytes before the handshake")
	}
	return nil
}

// authorization returns the value of Proxy-Authorization, or "".
func (h *hop) authorization() string {
	if h.proxy.User == nil {
		return ""
	}
	password, _ := h.proxy.User.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(h.proxy.User.Username()+":"+password))
}

// socks connects by a SOCKS5 proxy, which connects to the target by itself.
func (h *hop) socks(ctx context.Context, network, addr string) (net.Conn, error) {
	var auth *proxy.Auth
	if u := h.proxy.User; u != nil {
		password, _ := u.Password()
		auth = &proxy.Auth{User: u.Username(), Password: password}
	}
	d, err := proxy.SOCKS5(network, addr, auth, new(net.Dialer))
	if err != nil {
		return nil, err
	}
	dialer, ok := d.(proxy.ContextDialer)
	if !ok {
		return nil, errors.New("the dialer of SOCKS5 has no context")
	}
	return dialer.DialContext(ctx, network, h.target)
}

// proxied returns a layer that sends requests with an absolute target, and with the given value of
// Proxy-Authorization unless that is "".
func proxied(authorization string) httplayer.Layer {
	return httplayer.NewStack().MapRequest(func(r *http.Request) *http.Request {
		out, target := *r, *r.URL
		out.URL = &target
		// An Opaque URL is sent as it is, so the request line has the absolute target.
		if target.Opaque == "" {
			host := r.Host
			if host == "" {
				host = target.Host
			}
			path := target.EscapedPath()
			if path == "" {
				path = "/"
			}
			target.Opaque = "//" + inASCII(host) + path
		}
		if authorization != "" && r.Header["Proxy-Authorization"] == nil {
			out.Header = r.Header.Clone()
			out.Header["Proxy-Authorization"] = []string{authorization}
		}
		return &out
	}).Layer()
}
