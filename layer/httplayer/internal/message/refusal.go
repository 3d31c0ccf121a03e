package message

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Refusal describes a request that a server refused by itself, so that no handler has seen it. The
// request was malformed or too large, or it did not arrive in time.
type Refusal struct {
	Time   time.Time // time of the refusal
	Client string    // address of the client, as in http.Request.RemoteAddr
	Status int       // status of the response; 400 for a reset HTTP/2 stream or a broken connection
	Err    error     // the reason
	Proto  string    // "HTTP/1.0", "HTTP/1.1" or "HTTP/2.0"

	// Method, Host and Target are what was read from the request. Each may be empty, and may
	// contain any bytes that the client sent.
	Method, Host, Target string
}

// RefusalResponse returns the response to a request that is refused because of r, and sets r.Status to
// its status, which the configured function may have changed. ctx is the connection's context. It is
// not needed if the connection closes without a response.
func (cfg *ServerConfig) RefusalResponse(ctx context.Context, r *Refusal) *http.Response {
	if cfg.Refusal != nil {
		var rsp *http.Response
		err := panics.Contain(func() { rsp = cfg.Refusal(r.request(ctx), *r) })
		if err == nil {
			r.Status = rsp.StatusCode
			return rsp
		}
		cfg.Log.Error("panic while a refused request was answered", "error", err)
	}
	// Without the function, or if it panics, the response has no body.
	return &http.Response{
		StatusCode: r.Status, Status: StatusLines[r.Status], Header: http.Header{"Content-Length": {"0"}}, Body: http.NoBody,
	}
}

// Refuse reports r to the functions Refused and Ended of the configuration, and to the log. It sets
// r.Time. sent is the number of body bytes of the response that were sent.
func (cfg *ServerConfig) Refuse(ctx context.Context, r Refusal, sent int64) {
	r.Time = time.Now()
	cfg.Log.Debug("request refused", "client", r.Client, "status", r.Status, "method", r.Method, "target", r.Target, "error", r.Err)
	if cfg.Refused != nil {
		if err := panics.Contain(func() { cfg.Refused(ctx, r) }); err != nil {
			cfg.Log.Error("panic while a refused request was reported", "error", err)
		}
	}
	if cfg.Ended != nil {
		cfg.ended(r.report(ctx, sent))
	}
}

// report returns the Report of a refused request on a connection with the context ctx.
func (r *Refusal) report(ctx context.Context, sent int64) *Report {
	return &Report{
		Request: r.request(ctx), Status: r.Status, Err: r.Err, Refused: true, Began: r.Time, Head: r.Time, Ended: r.Time,
		Sent: sent, Facts: layer.Facts{Err: r.Err},
	}
}

// request returns what was read of the request.
func (r *Refusal) request(ctx context.Context) *http.Request {
	req := (&http.Request{
		Method: r.Method, Host: r.Host, RequestURI: r.Target, Proto: r.Proto, RemoteAddr: r.Client,
		Header: http.Header{}, URL: refusedURL(r.Target), Body: http.NoBody,
	}).WithContext(ctx)
	req.ProtoMajor, req.ProtoMinor, _ = http.ParseHTTPVersion(r.Proto)
	return req
}

// refusedURL returns a URL with the path and the query of target. It always succeeds, because a refused
// target may contain any bytes.
func refusedURL(target string) *url.URL {
	u := new(url.URL)
	if !PlainTarget(target, u) {
		u.Path, u.RawQuery, _ = strings.Cut(target, "?")
	}
	return u
}

// maxRefusedLine is how far into a refused request its method and target are looked for, in
// bytes.
const maxRefusedLine = 8 << 10

// StartLine returns the method and the target in b, which begins with a request line. If the line
// is malformed or incomplete, the results are what could be read.
func StartLine(b []byte) (method, target string) {
	line, _, _ := bytes.Cut(b[:min(len(b), maxRefusedLine)], []byte("\n"))
	name, rest, found := bytes.Cut(line, []byte(" "))
	if !found || !ValidName(string(name)) {
		return "", ""
	}
	uri, _, _ := bytes.Cut(bytes.TrimRight(rest, "\r"), []byte(" "))
	return string(name), string(uri)
}
