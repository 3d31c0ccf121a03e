package httpclient

import (
	"net/http"
	"strings"
)

// Hosts is an [http.RoundTripper] that sends a request to the transport for the host of its
// URL. A key is a host in lower case, such as "web.default" or "web.default:8080". A key
// with the port of the URL takes precedence over a key without a port. A URL without a port
// has the default port of its scheme. If no key matches, the request goes to
// [http.DefaultTransport].
//
//	client := &http.Client{Transport: httpclient.Hosts{
//		"web.default":   httpclient.New(ctx, "web.default:80"),
//		"books.default": httpclient.New(ctx, "books.default:80"),
//	}}
//
// A Hosts must not be modified while it is in use.
type Hosts map[string]http.RoundTripper

// RoundTrip implements [http.RoundTripper].
func (h Hosts) RoundTrip(req *http.Request) (*http.Response, error) {
	return h.transport(req).RoundTrip(req)
}

func (h Hosts) transport(req *http.Request) http.RoundTripper {
	if req.URL == nil {
		return http.DefaultTransport //nolint:forbidigo // returns the error of http.Client
	}
	host, port := strings.ToLower(req.URL.Hostname()), req.URL.Port()
	switch {
	case port != "":
	case req.URL.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if rt := h[host+":"+port]; rt != nil {
		return rt
	}
	if rt := h[host]; rt != nil {
		return rt
	}
	return http.DefaultTransport //nolint:forbidigo // the same default as http.Client
}

// CloseIdleConnections closes the idle connections of all transports, for
// [http.Client.CloseIdleConnections].
func (h Hosts) CloseIdleConnections() {
	for _, rt := range h {
		if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}
	if c, ok := http.DefaultTransport.(interface{ CloseIdleConnections() }); ok { //nolint:forbidigo // see transport
		c.CloseIdleConnections()
	}
}
