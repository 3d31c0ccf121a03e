package httpclient

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/gotower/gotower/layer/httplayer"
)

// userAgent is the User-Agent for requests without one. In net/http it ends with 2.0 over HTTP/2.
const userAgent = "Go-http-client/1.1"

// These are constant field values, which the headers of all requests share.
var (
	userAgents = []string{userAgent} //nolint:gochecknoglobals // constant
	gzipOnly   = []string{"gzip"}    //nolint:gochecknoglobals // constant
)

// RoundTrip implements [http.RoundTripper]. Unlike [Client.Call], which sends a request as it is, RoundTrip
// does for the caller what [http.Transport] does: it adds a User-Agent to a request without one, and
// decompresses gzip; see "As http.Transport" in the package documentation.
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := c.check(req); err != nil {
		closeBody(req)
		return nil, err
	}
	out, decompress := c.outgoing(req)
	rsp, err := c.trip.RoundTrip(probed(out))
	if err != nil {
		return nil, err
	}
	rsp.Request = req
	if rsp.StatusCode == http.StatusNotModified {
		rsp.ContentLength = 0 // a proxy must know whether there is a length, and a caller has no body
	}
	if decompress {
		uncompress(rsp)
	}
	return rsp, nil
}

// check returns an error if c must not send req. A redirect to another host would otherwise get a response
// of the target, which is the wrong server.
func (c *Client) check(req *http.Request) error {
	switch {
	case req.URL == nil:
		return fmt.Errorf("httpclient: %s: the request has no URL", c.target)
	case req.Header == nil:
		return fmt.Errorf("httpclient: %s: the request has no Header", c.target)
	case len(req.Trailer) > 0 && !validTrailer(req.Trailer):
		return fmt.Errorf("httpclient: %s: a trailer of the request has a name that is invalid or not allowed: %q",
			c.target, slices.Sorted(maps.Keys(req.Trailer)))
	case c.anyHost || req.Response == nil || req.Response.Request == nil || req.Response.Request.URL == nil:
		return nil
	}
	origin, destination := keyOf(req.Response.Request.URL), keyOf(req.URL)
	// From http to https on the same host, the default port differs although the target does not.
	if origin.host != destination.host || origin.port != destination.port && origin.scheme == destination.scheme {
		return fmt.Errorf("httpclient: %s: the redirect from %s to %s leaves the target of this client: "+
			"NewTransport returns a client of any host", c.target, origin.addr(), destination.addr())
	}
	return nil
}

// validTrailer reports whether a request may announce the names in trailer: each is a valid name of a
// header field, and none of the three that describe the body, which http.Transport does not allow either.
// The values are not checked, because they may be set until the body has been read.
func validTrailer(trailer http.Header) bool {
	for name := range trailer {
		switch http.CanonicalHeaderKey(name) {
		case "Content-Length", "Trailer", "Transfer-Encoding":
			return false
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
	}
	return true
}

// outgoing returns req with the fields that http.Transport would add, or req itself if there is nothing
// to add. If decompress is true, the caller of RoundTrip has not asked for gzip, so RoundTrip must
// decompress the response.
func (c *Client) outgoing(req *http.Request) (out *http.Request, decompress bool) {
	agent, hasAgent := req.Header["User-Agent"]
	// As in net/http, an empty User-Agent asks for none.
	removesAgent := hasAgent && (len(agent) == 0 || agent[0] == "")
	// A caller that asks for a coding or a range itself wants the bytes as they are.
	decompress = !c.keepsGzip && req.Method != http.MethodHead &&
		len(req.Header["Accept-Encoding"]) == 0 && len(req.Header["Range"]) == 0
	closes := len(req.Header["Connection"]) > 0 && httpguts.HeaderValuesContainsToken(req.Header["Connection"], "close")
	if hasAgent && !removesAgent && !decompress && !closes {
		return req, false
	}
	// A copy, because a RoundTripper must not modify the request.
	out = new(http.Request)
	*out = *req
	out.Close = req.Close || closes
	out.Header = make(http.Header, len(req.Header)+2)
	maps.Copy(out.Header, req.Header)
	switch {
	case removesAgent:
		delete(out.Header, "User-Agent")
	case !hasAgent:
		out.Header["User-Agent"] = userAgents
	}
	if decompress {
		out.Header["Accept-Encoding"] = gzipOnly
	}
	return out, decompress
}

// WithoutDecompression leaves a compressed response as it is, and does not ask for one, like
// DisableCompression in [http.Transport]. [Client.Call] is not affected, as it never decompresses.
func WithoutDecompression() Option { return func(o *options) { o.keepsGzip = true } }

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// isGzip reports whether the body of rsp is compressed with gzip.
func isGzip(rsp *http.Response) bool {
	return rsp.ContentLength != 0 && strings.EqualFold(rsp.Header.Get("Content-Encoding"), "gzip")
}

var _ http.RoundTripper = (*Client)(nil)
var _ httplayer.Service = (*Client)(nil)
