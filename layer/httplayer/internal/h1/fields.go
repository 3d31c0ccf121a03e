package h1

import (
	"net/http"
	"net/url"
	"slices"
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

// appendFields appends the fields of header to b. It skips Host, Content-Length, the hop-by-hop fields,
// the fields that Connection names, and invalid fields. The fields in arrived come first, in that
// order; the others follow in the random order of the map. invalid is the name of an invalid field, or
// "" without one.
func appendFields(b []byte, header http.Header, arrived order) (_ []byte, invalid string) {
	options := header["Connection"]
	// On the stack, for the usual number of fields.
	var memory [16]string
	names := arrived.names(memory[:0])
	ordered := 0
	for _, name := range names {
		if values, ok := header[name]; ok {
			ordered++ // found in header
			b, invalid = appendValues(b, name, name, values, options, invalid)
		}
	}
	if ordered == len(header) { // all fields are written
		return b, invalid
	}
	for name, values := range header {
		if !slices.Contains(names, name) {
			b, invalid = appendValues(b, name, canonical(name), values, options, invalid)
		}
	}
	return b, invalid
}

// appendValues appends one line for each of the values, unless appendFields skips the field. canonName
// is canonical(name). It returns name if the name or a value is invalid, and otherwise its argument
// invalid.
func appendValues(b []byte, name, canonName string, values, options []string, invalid string) ([]byte, string) {
	switch {
	case canonName == "":
		// These are written elsewhere, or they are meant for one connection only.
		return b, name
	case canonName == "Host", canonName == "Content-Length", message.IsHopByHop(canonName), message.Listed(options, canonName):
		return b, invalid
	}
	for _, value := range values {
		if message.ValidValue(value) {
			b = appendField(b, name, value)
		} else {
			invalid = name
		}
	}
	return b, invalid
}

// canonical returns name in canonical form, such as "Content-Type", or "" if name is not a token. It is
// cheaper than [http.CanonicalHeaderKey] for a name that is in canonical form already, as most are.
func canonical(name string) string {
	unchanged, changing := true, uint8(message.LowerByte) // changing is the class of letters that canonical changes next
	for i := range len(name) {
		class := message.Class[name[i]]
		if class&message.TokenByte == 0 {
			return ""
		}
		unchanged = unchanged && class&changing == 0
		changing = message.UpperByte
		if name[i] == '-' {
			changing = message.LowerByte
		}
	}
	if !unchanged {
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
	b, _ = appendFields(b, trailer, "")
	return append(b, '\r', '\n')
}

func invalidRequest(reason string) error { return &message.RequestError{Reason: reason} }

// appendTarget appends the request target. For CONNECT this is the host and port. For a
// request that was received in absolute form it is an absolute URL. Otherwise it is "*" for
// OPTIONS *, or a path with its query.
func appendTarget(b []byte, req *http.Request, host string) ([]byte, error) {
	start := len(b)
	u := req.URL
	switch {
	case req.Method == http.MethodConnect:
		if !message.ValidAuthority(host) {
			return b, invalidRequest("the target of CONNECT is not a host and a port: " + strconv.Quote(host))
		}
		return append(b, host...), nil
	// A request to a forward proxy names the whole URL. It is sent as received, if no layer has changed
	// it.
	case u.Host != "" && !strings.HasPrefix(req.RequestURI, "/") && strings.Contains(req.RequestURI, "://"):
		if isUnchanged(u, req.RequestURI) {
			b = append(b, req.RequestURI...)
			break
		}
		b = append(b, u.Scheme...)
		b = append(b, "://"...)
		b = append(b, u.Host...)
		b = appendPath(b, u)
	case u.Path == "*" && req.Method == http.MethodOptions:
		b = append(b, '*')
	default:
		b = appendPath(b, u)
	}
	if !message.All(b[start:], message.TargetByte) {
		return b, invalidRequest("invalid target " + strconv.Quote(string(b[start:])))
	}
	return b, nil
}

// isUnchanged reports whether u still has the value of target, an absolute URL that was received. If
// so, target can be sent again without changing its spelling.
func isUnchanged(u *url.URL, target string) bool {
	received, err := url.ParseRequestURI(target)
	return err == nil && u.Path != "" && *received == *u
}

// appendPath appends the path, which is "/" if it is empty, and the query of u.
func appendPath(b []byte, u *url.URL) []byte {
	// An Opaque URL is sent as it is.
	if u.Opaque != "" {
		return append(b, u.RequestURI()...)
	}
	path := message.EscapedPath(u)
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

// lengthOfRequest returns a request body's length. It returns 0 without a body, and -1 if the
// length is unknown and the body is sent in chunks.
func lengthOfRequest(req *http.Request) int64 {
	switch {
	case req.Body == nil || req.Body == http.NoBody || req.Method == http.MethodConnect:
		return 0
	case slices.Contains(req.TransferEncoding, "chunked"): // the caller asks for it, for example to send trailers
		return -1
	case req.ContentLength > 0:
		return req.ContentLength
	// A length of 0 with a body means unknown, unless a client has sent Content-Length: 0.
	case req.ContentLength == 0 && req.RequestURI != "" && message.ContentLength(req.Header["Content-Length"]) == 0:
		return 0
	}
	return -1
}

// appendRequest appends req's request line and headers, including the empty line after them. length is
// the result of lengthOfRequest. arrived is the order of the fields in the received request that req
// forwards, or "". It returns an error if req cannot be sent.
func appendRequest(b []byte, req *http.Request, length int64, arrived order) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !message.ValidName(method) {
		return b, invalidRequest("invalid method " + strconv.Quote(method))
	}
	host, ok := message.Host(req)
	if !ok {
		return b, invalidRequest("invalid host " + strconv.Quote(host))
	}
	b = append(b, method...)
	b = append(b, ' ')
	b, err := appendTarget(b, req, host)
	if err != nil {
		return b, err
	}
	// A request from an HTTP/1.0 client stays one, unless its body needs chunks, which came with HTTP/1.1.
	if isOld(req) && length >= 0 {
		b = append(b, " HTTP/1.0\r\n"...)
	} else {
		b = append(b, " HTTP/1.1\r\n"...)
	}
	if host != "" || !isOld(req) {
		b = appendField(b, "Host", host)
	}
	b, invalid := appendFields(b, req.Header, arrived)
	if invalid != "" {
		return b, invalidRequest("invalid field " + strconv.Quote(invalid))
	}
	if b, err = appendOptions(b, req); err != nil {
		return b, err
	}
	// Servers expect a length with these methods, even if it is 0.
	posts := method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
	sendsLength := posts
	// A received request is not changed. In others, the field does not count.
	if req.RequestURI != "" {
		sendsLength = req.Header["Content-Length"] != nil && method != http.MethodConnect
	}
	if length != 0 || sendsLength {
		b = appendLength(b, length, req.Trailer)
	}
	return append(b, '\r', '\n'), nil
}

// isOld reports whether req is a received request with the version HTTP/1.0.
func isOld(req *http.Request) bool {
	return req.ProtoMajor == 1 && req.ProtoMinor == 0 && req.RequestURI != ""
}

// appendOptions appends the fields that are only meant for the next server: Connection, Upgrade and TE,
// if req needs them. All three are written here, because Connection must list the names of the other
// two.
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
	// An empty value is valid, so this concerns only a request with an upgrade.
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

// closesAfter reports whether req asks the server to close the connection. For a received request
// it returns false, because req.Close then describes the client's connection.
func closesAfter(req *http.Request) bool { return req.Close && req.RequestURI == "" }
