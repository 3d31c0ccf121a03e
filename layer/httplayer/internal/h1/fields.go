package h1

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// appendField appends one header field without checking it.
func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, '\r', '\n')
}

// appendFields appends the fields of header. It skips Host, Content-Length, the hop-by-hop
// fields, the fields that Connection names, and invalid fields. It returns the name of an
// invalid field, or "" without one.
func appendFields(b []byte, header http.Header) (_ []byte, invalid string) {
	options := header["Connection"]
	for name, values := range header {
		known := canonical(name)
		switch {
		case known == "":
			invalid = name
			continue
		case known == "Host", known == "Content-Length", message.IsHopByHop(known), message.Listed(options, known):
			continue
		}
		for _, value := range values {
			if message.ValidValue(value) {
				b = appendField(b, name, value)
			} else {
				invalid = name
			}
		}
	}
	return b, invalid
}

// canonical returns name in canonical form, or "" if name is not a token. A name that is canonical, as
// most are, costs less than by [http.CanonicalHeaderKey].
func canonical(name string) string {
	same, other := true, uint8(message.LowerByte) // other is the class of letters that change here
	for i := range len(name) {
		class := message.Class[name[i]]
		if class&message.TokenByte == 0 {
			return ""
		}
		same = same && class&other == 0
		other = message.UpperByte
		if name[i] == '-' {
			other = message.LowerByte
		}
	}
	if !same {
		return http.CanonicalHeaderKey(name)
	}
	return name
}

// appendLength appends the field that marks the end of a body. This is Content-Length, or
// Transfer-Encoding if length is -1. A chunked message also announces its trailers.
func appendLength(b []byte, length int64, trailer http.Header) []byte {
	if length >= 0 {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		return append(b, '\r', '\n')
	}
	b = append(b, "Transfer-Encoding: chunked\r\n"...)
	if names := message.TrailerNames(trailer); names != "" {
		b = appendField(b, "Trailer", names)
	}
	return b
}

// appendTrailers appends the trailers and the empty line that ends them. It skips invalid
// trailers, because the message can no longer be rejected.
func appendTrailers(b []byte, trailer http.Header) []byte {
	b, _ = appendFields(b, trailer)
	return append(b, '\r', '\n')
}

func invalidRequest(reason string) error { return &message.RequestError{Reason: reason} }

// appendTarget appends the request target. For CONNECT this is the host and port. For a
// request that was received in absolute form it is an absolute URL. Otherwise it is "*" for
// OPTIONS *, or a path with its query.
func appendTarget(b []byte, req *http.Request, host string) ([]byte, error) {
	from := len(b)
	u := req.URL
	switch {
	case req.Method == http.MethodConnect:
		if !message.ValidAuthority(host) {
			return b, invalidRequest("the target of CONNECT is not a host and a port: " + strconv.Quote(host))
		}
		return append(b, host...), nil
	case u.Host != "" && !strings.HasPrefix(req.RequestURI, "/") && strings.Contains(req.RequestURI, "://"):
		b = append(b, u.Scheme...)
		b = append(b, "://"...)
		b = append(b, u.Host...)
		b = appendPath(b, u)
	case u.Path == "*" && req.Method == http.MethodOptions:
		b = append(b, '*')
	default:
		b = appendPath(b, u)
	}
	if !message.All(b[from:], message.TargetByte) {
		return b, invalidRequest("invalid target " + strconv.Quote(string(b[from:])))
	}
	return b, nil
}

func appendPath(b []byte, u *url.URL) []byte {
	if u.Opaque != "" {
		return append(b, u.RequestURI()...)
	}
	path := u.EscapedPath()
	if path == "" || path[0] != '/' {
		b = append(b, '/')
	}
	b = append(b, path...)
	if u.RawQuery != "" || u.ForceQuery {
		b = append(b, '?')
		b = append(b, u.RawQuery...)
	}
	return b
}

// lengthOfRequest returns the length of the body of a request. It returns 0 without a
// body, and -1 if the length is unknown and the body is sent in chunks.
func lengthOfRequest(req *http.Request) int64 {
	switch {
	case req.Body == nil || req.Body == http.NoBody || req.Method == http.MethodConnect:
		return 0
	case req.ContentLength > 0:
		return req.ContentLength
	case req.ContentLength == 0 && message.ContentLength(req.Header["Content-Length"]) == 0:
		return 0
	}
	return -1
}

// appendRequest appends the request line and the headers of req, including the empty line
// at their end. The argument length is the result of lengthOfRequest.
func appendRequest(b []byte, req *http.Request, length int64) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !message.ValidName(method) {
		return b, invalidRequest("invalid method " + strconv.Quote(method))
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	if !message.ValidHost(host) {
		return b, invalidRequest("invalid host " + strconv.Quote(host))
	}
	b = append(b, method...)
	b = append(b, ' ')
	b, err := appendTarget(b, req, host)
	if err != nil {
		return b, err
	}
	if isOld(req) && length >= 0 {
		b = append(b, " HTTP/1.0\r\n"...)
	} else {
		b = append(b, " HTTP/1.1\r\n"...)
	}
	if host != "" || !isOld(req) {
		b = appendField(b, "Host", host)
	}
	b, invalid := appendFields(b, req.Header)
	if invalid != "" {
		return b, invalidRequest("invalid field " + strconv.Quote(invalid))
	}
	if b, err = appendOptions(b, req); err != nil {
		return b, err
	}
	posts := method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
	if length != 0 || posts && req.RequestURI == "" || // a received request is not changed
		req.Header["Content-Length"] != nil && method != http.MethodConnect {
		b = appendLength(b, length, req.Trailer)
	}
	return append(b, '\r', '\n'), nil
}

// isOld reports whether req is a received request with the version HTTP/1.0.
func isOld(req *http.Request) bool {
	return req.ProtoMajor == 1 && req.ProtoMinor == 0 && req.RequestURI != ""
}

// appendOptions appends the field Connection of a request, and the fields Upgrade and TE, if req
// needs them. All three are written here, because Connection must list the names of the other two.
func appendOptions(b []byte, req *http.Request) ([]byte, error) {
	upgrade := message.Upgrade(req.Header)
	trailers := message.Listed(req.Header["Te"], "trailers")
	options := make([]string, 0, 3)
	if upgrade != "" {
		options = append(options, "Upgrade")
	}
	if trailers {
		options = append(options, "TE")
	}
	if closesAfter(req) {
		options = append(options, "close")
	}
	if len(options) > 0 {
		b = appendField(b, "Connection", strings.Join(options, ", "))
	}
	if !message.ValidValue(upgrade) {
		return b, invalidRequest(`invalid field "Upgrade"`)
	}
	if upgrade != "" {
		b = appendField(b, "Upgrade", upgrade)
	}
	if trailers {
		b = appendField(b, "Te", "trailers")
	}
	return b, nil
}

// closesAfter reports whether req asks the server to close the connection. For a received
// request it returns false, because req.Close then describes the connection of the client.
func closesAfter(req *http.Request) bool { return req.Close && req.RequestURI == "" }
