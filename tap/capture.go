package tap

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/internal/secret"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// redacted is the text that watchers see in place of a secret value.
const redacted = secret.Withheld

// requestFields returns the header fields of the request with secret values replaced. For a
// request over HTTP/2, the pseudo-header fields come first.
func (x *exchange[Req, Rsp]) requestFields(r *Registry) []Field {
	out := []Field{}
	if x.access.RequestOverHTTP2(x.req) {
		init := x.init.withoutFields
		path := init.Path
		if query := x.access.Query(x.req); query != "" {
			path += "?" + query
		}
		out = r.pseudo(out, ":method", init.Method)
		if path != "" { // CONNECT has neither scheme nor path
			out = r.pseudo(out, ":scheme", init.Scheme)
		}
		out = r.pseudo(out, ":authority", init.Authority)
		out = r.pseudo(out, ":path", path)
	}
	return r.capture(out, x.access.RequestHeader(x.req))
}

// responseFields returns the fields of header with secret values replaced. header has the header
// fields of rsp. For a response over HTTP/2, the field ":status" comes first.
func (x *exchange[Req, Rsp]) responseFields(r *Registry, rsp Rsp, header layer.Header) []Field {
	out := []Field{}
	if x.access.ResponseOverHTTP2(rsp) {
		out = r.pseudo(out, ":status", strconv.Itoa(x.status))
	}
	return r.capture(out, header)
}

// pseudo appends the pseudo-header field with the given name and value to fields, with
// secret parts of the value replaced. It appends nothing if value is empty.
func (r *Registry) pseudo(fields []Field, name, value string) []Field {
	if value == "" {
		return fields
	}
	return append(fields, Field{name, r.shownValue(name, value)})
}

// capture appends the header fields in the argument fields to out, sorted by name and with secret
// values replaced. If out is not empty, it already has the pseudo-header fields, such as ":path",
// and capture does not append them again.
func (r *Registry) capture(out []Field, fields layer.Header) []Field {
	first := len(out)
	for name, value := range fields.All() {
		name = strings.ToLower(name)
		if first > 0 && strings.HasPrefix(name, ":") {
			continue // out has it
		}
		out = append(out, Field{name, r.shownValue(name, value)})
	}
	slices.SortStableFunc(out[first:], func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// shownValue returns value with its secret parts replaced, for the field with the given
// name.
func (r *Registry) shownValue(name, value string) string {
	if mask := r.mask(name); mask != nil {
		return mask(value)
	}
	return value
}

// mask returns the function that replaces the secret parts of a value of the header field
// with the given name. It returns nil if such a value is shown unchanged. name must be in
// lower case.
func (r *Registry) mask(name string) func(string) string {
	switch name {
	case "host", ":authority":
		if !r.secret(name) {
			return withoutUser
		}
	case ":path", "location", "content-location", "referer", "refresh",
		"x-forwarded-uri", "x-original-uri", "x-original-url", "x-rewrite-url", "x-envoy-original-path":
		switch _, set := r.secrets[name]; {
		case set:
		case r.showsQueries():
			return r.withoutCredentials
		default:
			return withoutQuery
		}
	}
	if r.secret(name) {
		return func(string) string { return redacted }
	}
	return nil
}

// secret reports whether values of the header field or query parameter with the given name
// are withheld completely. For a name that was passed to WithRedacted or WithRevealed, that
// option decides, and otherwise the default. name must be in lower case.
func (r *Registry) secret(name string) bool {
	if hide, set := r.secrets[name]; set {
		return hide
	}
	return secret.Field(name)
}

// showsQueries reports whether the option WithRevealed("query") is set.
func (r *Registry) showsQueries() bool {
	hide, set := r.secrets["query"]
	return set && !hide
}

// withoutUser returns authority without its user information and the "@" that follows.
func withoutUser(authority string) string {
	return authority[strings.LastIndexByte(authority, '@')+1:]
}

// withoutQuery returns uri without its user information, and with its query and fragment
// replaced. Text may precede the URI, as in a Refresh field.
func withoutQuery(uri string) string {
	if i := strings.IndexAny(uri, "?#"); i >= 0 && i+1 < len(uri) {
		uri = uri[:i+1] + redacted
	}
	return withoutUserInfo(uri)
}

// withoutCredentials returns uri without its user information, and with the values of secret
// parameters of the query and the fragment replaced. OAuth 2.0 sends an access token in the
// fragment. Text may precede the URI, as in a Refresh field.
func (r *Registry) withoutCredentials(uri string) string {
	uri = withoutUserInfo(uri)
	start := strings.IndexAny(uri, "?#")
	if start < 0 {
		return uri
	}
	shown, rest := uri[:start], uri[start:]
	for rest != "" {
		param := rest[1:] // after a separator
		end := strings.IndexAny(param, "?#&")
		if end < 0 {
			end = len(param)
		}
		param, shown = param[:end], shown+rest[:1]
		if name, _, valued := strings.Cut(param, "="); valued && r.secretParam(name) {
			param = name + "=" + redacted
		}
		shown, rest = shown+param, rest[1+end:]
	}
	return shown
}

// secretParam reports whether the value of the query parameter with the given name is
// withheld. It returns true if name has invalid escapes.
func (r *Registry) secretParam(name string) bool {
	plain, err := url.QueryUnescape(name)
	return err != nil || r.secret(strings.ToLower(plain))
}

func withoutUserInfo(uri string) string {
	if i := strings.Index(uri, "//"); i == 0 || i > 0 && uri[i-1] == ':' {
		host := uri[i+2:]
		end := len(host)
		if slash := strings.IndexAny(host, "/?#"); slash >= 0 {
			end = slash
		}
		uri = uri[:i+2] + withoutUser(host[:end]) + host[end:]
	}
	return uri
}

// terms are the validated parameters of a watcher: its condition, its limits, and the
// optional parts of its events that it requests.
type terms struct {
	match    *condition
	limit    uint64        // maximum number of requests; the constant unlimited means no limit
	sample   float64       // fraction of the requests; 0 means all
	outcome  *outcome      // condition on the end of a request; nil means any
	duration time.Duration // 0 means no limit
	fields   bool          // whether header and trailer fields are shown
	explain  bool
	body     int    // maximum number of bytes shown of each body; 0 means no bodies
	maxRPS   uint32 // requests per second; 0 means no limit

	connections bool // whether connections are shown too
}

const unlimited = math.MaxUint64

// terms validates req and returns the parameters of the watcher that req describes. An
// error has the type rejection.
func (r *Registry) terms(req *tappb.WatchRequest) (terms, error) {
	t := terms{
		limit: req.GetLimit(), sample: req.GetSample(),
		fields: req.GetFields(), explain: req.GetExplain(), maxRPS: req.GetMaxRps(), connections: true,
	}
	if t.limit == 0 {
		t.limit = unlimited
	}
	if err := checkNumbers(req); err != nil {
		return terms{}, reject(codes.InvalidArgument, err)
	}
	t.duration = req.GetDuration().AsDuration()
	if n := req.GetBodyBytes(); n > 0 {
		if r.redact == nil {
			return terms{}, reject(codes.PermissionDenied, errors.New("body_bytes: the process has no tap.WithBodies"))
		}
		t.body = min(int(n), r.maxBody)
	}
	var err error
	if t.outcome, err = outcomeOf(req.GetResponse()); err != nil {
		return terms{}, reject(codes.InvalidArgument, err)
	}
	t.match, err = r.filter(req.GetMatch(), req.GetHeaders())
	return t, err
}

// checkNumbers returns an error if the sample or the duration of req is out of range. It is
// separate from terms because Follow checks req before it calls a process.
func checkNumbers(req *tappb.WatchRequest) error {
	if s := req.GetSample(); math.IsNaN(s) || s < 0 || s > 1 {
		return fmt.Errorf("sample: %v must be from 0 to 1", s)
	}
	if d := req.GetDuration(); d != nil && (!d.IsValid() || d.AsDuration() <= 0) {
		return errors.New("duration: must be positive")
	}
	return nil
}
