package httplayer

import (
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
)

// rewrite undoes what ReverseProxy does for the gateway it was made to be, and
// a transparent proxy should not do.
func rewrite(p *httputil.ProxyRequest) {
	var a Accessor
	in, out := p.In, p.Out
	if in.URL.Scheme == "" && in.TLS == nil {
		out.URL.Scheme = "http"
	}
	out.URL.Host = a.Authority(in)
	out.URL.RawQuery = in.URL.RawQuery
	out.Host = in.Host
	// Not the copy: the server fills it in when the body was read.
	out.Trailer = in.Trailer
	if out.Body != nil && in.ProtoMajor == 2 {
		out.Body = &closable{out.Body, in.Body}
	}
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := in.Header[name]; ok && !namedInConnection(in.Header, name) {
			out.Header[name] = slices.Clone(values)
		}
	}
	if strings.EqualFold(out.Header.Get("Upgrade"), "h2c") {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	out.Header.Del("HTTP2-Settings")
	onlyHost(out)
	if in.ContentLength == 0 && len(in.Header["Content-Length"]) > 0 {
		// A length of 0 that was said is said again; net/http would drop it
		// from methods that usually have no body.
		out.Body, out.TransferEncoding = http.NoBody, []string{"identity"}
	}
}

func namedInConnection(h http.Header, name string) bool {
	for _, value := range h["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}

// closable is the body of an HTTP/2 request. ReverseProxy puts one around it
// that does not pass Close on, which is right for HTTP/1.1, where Close waits
// for the client. Here it must end a Read that waits: an endpoint that is done
// before its client is would hang in it (golang/go#78973, #80085).
type closable struct {
	io.ReadCloser
	received io.Closer
}

func (c *closable) Close() error {
	return errors.Join(c.ReadCloser.Close(), c.received.Close())
}
