package httplayer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// PathPolicy specifies which paths [NormalizePath] accepts and how it changes them. Many servers
// merge slashes, resolve dot segments, decode separators and ignore the parameters of a segment.
// The zero value therefore gives every path the form that such servers give it, and rejects a path
// that servers read in different ways.
type PathPolicy struct {
	// KeepSlashes keeps repeated slashes. By default /a//b becomes /a/b.
	KeepSlashes bool

	// Allow accepts characters that are rejected by default: "%2F", "%5C", "%3B" and "%00", which
	// some servers decode before they look for segments, parameters and the end of the path, and
	// "\", which some servers read as a slash.
	Allow []string
}

// Validate returns an error if Allow contains an unknown element.
func (p PathPolicy) Validate() error {
	for _, text := range p.Allow {
		if !slices.Contains(ambiguous[:], text) {
			return fmt.Errorf("PathPolicy.Allow has %q, must be one of %s", text, strings.Join(ambiguous[:], " "))
		}
	}
	return nil
}

// ambiguous lists the path characters that a PathPolicy rejects unless it allows them.
var ambiguous = [...]string{"%2F", "%5C", "%3B", "%00", `\`} //nolint:gochecknoglobals // constant

// Normalize returns the normal form of path, which is percent-encoded and does not include the
// query. It decodes letters, digits and "-._~" (RFC 3986, section 6.2.2), merges slashes, and removes
// the segments "." and "..". Other characters keep their form. A path that does not begin with a
// slash is returned unchanged. The error says which part of path p rejects.
func (p PathPolicy) Normalize(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || isNormal(path) {
		return path, nil
	}
	path, err := p.decode(path)
	if err != nil {
		return "", err
	}
	// Without dots and ambiguous characters, there is nothing to resolve.
	if !strings.Contains(path, "/.") && !strings.ContainsAny(path, `%\;`) {
		return path, nil
	}
	return resolveDots(path)
}

// isNormal reports whether path is in normal form and unambiguous, as most paths are, so that Normalize
// need not do anything.
func isNormal(path string) bool {
	for i := range len(path) {
		switch path[i] {
		case '%', '\\', '#', ';':
			return false
		case '/':
			if i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.') {
				return false
			}
		}
	}
	return true
}

// decode does the first step of Normalize: it decodes the characters that need no escape, merges
// slashes, and returns an error for a character that servers read in different ways.
func (p PathPolicy) decode(path string) (string, error) {
	var b strings.Builder
	slash := false // the last character was a slash
	for i := 0; i < len(path); i++ {
		text := path[i : i+1]
		if text == "%" {
			if i+2 >= len(path) || !isHex(path[i+1]) || !isHex(path[i+2]) {
				return "", errors.New("the path has a % without two hexadecimal digits")
			}
			text = path[i : i+3]
			i += 2
			if c, err := url.PathUnescape(text); err == nil && isUnreserved(c[0]) {
				text = c
			}
		}
		switch upper := strings.ToUpper(text); {
		case text == "#":
			return "", errors.New("the path has a fragment, which servers read in different ways")
		case slices.Contains(ambiguous[:], upper) && !slices.Contains(p.Allow, upper):
			return "", fmt.Errorf("the path has %s, which servers read in different ways", upper)
		case text == "/" && slash && !p.KeepSlashes:
			continue
		}
		b.WriteString(text)
		slash = text == "/"
	}
	return b.String(), nil
}

// isHex reports whether c is a hexadecimal digit.
func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// isUnreserved reports whether c means the same in a path whether it is percent-encoded or not (RFC 3986, section
// 2.3).
func isUnreserved(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("-._~", c) >= 0
}

// separators replaces all that servers may read as the end of a segment.
var separators = strings.NewReplacer( //nolint:gochecknoglobals // constant
	"%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/", `\`, "/", "%3b", "/", "%3B", "/", ";", "/",
)

// resolveDots removes the segments "." and "..", as a server does that resolves them. Some servers also
// treat "..;x" or "..%2Fa" like "..", and others do not, so a path with such a segment is rejected.
func resolveDots(path string) (string, error) {
	segments := strings.Split(path, "/")
	result := make([]string, 0, len(segments))
	for i, s := range segments {
		if !isDots(s) {
			if slices.ContainsFunc(strings.Split(separators.Replace(s), "/"), isDots) {
				return "", fmt.Errorf("the path has the segment %q, which servers read in different ways", s)
			}
			result = append(result, s)
			continue
		}
		if s == ".." && len(result) > 1 { // the first one is before the first slash
			result = result[:len(result)-1]
		}
		if i == len(segments)-1 { // the path still ends with a slash
			result = append(result, "")
		}
	}
	return strings.Join(result, "/"), nil
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

// NormalizePath returns a layer that brings each request's path into its normal form: see
// [PathPolicy.Normalize]. You should put it above layers that decide by the path, such as routes
// and authorization. The path that they see is then the path that is sent, and is the same for
// servers that normalize paths. Otherwise a client could bypass them with //admin or
// /x/%2e%2e/admin.
//
// Admission: every request is admitted, except for the errors below. Ready is forwarded.
//
// Cancellation and Body: not changed.
//
// Errors: a [StatusError] of 400 for a path that p rejects. Errors of inner are passed unchanged.
//
// Cost: none for a path in normal form, otherwise a copy of the request and its URL. An invalid p
// panics.
func NormalizePath(p PathPolicy) Layer {
	if err := p.Validate(); err != nil {
		panic("httplayer: " + err.Error())
	}
	p.Allow = slices.Clone(p.Allow)
	state := layer.State{{Key: "merge_slashes", Value: !p.KeepSlashes}, {Key: "allow", Value: p.Allow}}
	return around.Layer("normalize_path", state, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		path := message.EscapedPath(req.URL)
		normal, err := p.Normalize(path)
		if err != nil {
			return nil, &StatusError{Code: http.StatusBadRequest, Reason: err.Error(), Detail: err.Error()}
		}
		if normal != path {
			req = withPath(req, normal)
		}
		return next.Call(ctx, req)
	})
}

// withPath returns a copy of req with the given path, which is percent-encoded.
func withPath(req *http.Request, path string) *http.Request {
	copied := *req
	u := *req.URL
	u.RawPath, copied.URL = path, &u
	if plain, err := url.PathUnescape(path); err == nil {
		u.Path = plain
	}
	// Layers and logs also read the request target, so that its path changes, too.
	if strings.HasPrefix(req.RequestURI, "/") {
		_, query, found := strings.Cut(req.RequestURI, "?")
		if copied.RequestURI = path; found {
			copied.RequestURI += "?" + query
		}
	}
	return &copied
}
