package tap

import (
	"errors"
	"fmt"
	"math"
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
	// Not nil, because nil means that fields are not shown.
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

// responseFields returns header's fields with secret values replaced. header holds rsp's header
// fields. For a response over HTTP/2, the field ":status" comes first.
func (x *exchange[Req, Rsp]) responseFields(r *Registry, rsp Rsp, header layer.Header) []Field {
	// Not nil, because nil means that fields are not shown.
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

// capture appends the given header fields to out, with names in lower case, sorted by name, and with
// secret values replaced. If out is not empty, it holds the pseudo-header fields, such as ":path",
// which capture then does not add again.
func (r *Registry) capture(out []Field, fields layer.Header) []Field {
	first := len(out)
	for name, value := range fields.All() {
		if first > 0 && strings.HasPrefix(name, ":") {
			continue // out has it
		}
		out = append(out, Field{strings.ToLower(name), r.shownValue(name, value)})
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

// mask returns the function that hides the secret parts of a value in the header field with the given
// name: all of it in a field such as X-Api-Key, queries in a field with URIs such as Location, the user
// in Host and :authority even if they are revealed, and otherwise the values in pairs such as token=a.
// It returns nil for any other name that was passed to WithRevealed, because then nothing is hidden.
func (r *Registry) mask(name string) func(string) string {
	lower := strings.ToLower(name)
	_, set := r.secrets[lower]
	switch {
	case r.secret(name):
		return withhold
	case lower == "host", lower == ":authority":
		return withoutUser
	// A field that is set but not secret was named in WithRevealed.
	case set:
		return nil
	case hasURIs[lower[strings.LastIndexAny(lower, "-_:")+1:]] && !r.showsQueries():
		return withoutQueries
	}
	return r.withoutPairs
}

// withhold returns the text that is shown in place of a secret value, whatever the value is.
func withhold(string) string { return redacted }

// withoutPairs replaces the secret values of pairs in value, such as token=a.
func (r *Registry) withoutPairs(value string) string { return secret.Pairs(value, r.secret) }

// hasURIs lists the last words in the names of fields with URIs, such as X-Original-URL.
var hasURIs = map[string]bool{ //nolint:gochecknoglobals // a table
	"path": true, "location": true, "referer": true, "referrer": true, "refresh": true, "uri": true, "url": true,
	"redirect": true, "destination": true, "link": true, "sourcemap": true,
}

// secret reports whether values of the header field or query parameter with this name are withheld
// completely. WithRedacted and WithRevealed decide for the names that were passed to them; for others,
// secret.Field does.
func (r *Registry) secret(name string) bool {
	if hide, set := r.secrets[strings.ToLower(name)]; set {
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

// withoutQueries returns a value from a field with URIs, with each URI's query and fragment
// replaced, and without user information. A query ends with the value, or with the angle brackets
// around a URI in a Link field.
func withoutQueries(value string) string {
	value = secret.WithoutUserInfo(value)
	var b strings.Builder
	for {
		query := strings.IndexAny(value, "?#") + 1
		if query == 0 || query == len(value) {
			break
		}
		b.WriteString(value[:query] + redacted)
		// The query is not within angle brackets, so it ends with the value.
		if strings.LastIndexByte(value[:query], '<') <= strings.LastIndexByte(value[:query], '>') {
			return b.String()
		}
		end := strings.IndexByte(value[query:], '>')
		if end < 0 {
			return b.String()
		}
		value = value[query+end:]
	}
	return b.String() + value
}

// terms is what a watcher asks for, after validation: which requests, how many, and which optional
// parts of events.
type terms struct {
	match    *condition
	limit    uint64        // maximum number of requests; the constant unlimited means no limit
	sample   float64       // fraction of the requests; 0 means all
	outcome  *outcome      // condition on the end of a request; nil means any
	duration time.Duration // 0 means no limit
	fields   bool          // whether header and trailer fields are shown
	explain  bool          // the end event contains the choices of the layers
	body     int           // maximum number of bytes shown of each body; 0 means no bodies
	maxRPS   uint32        // requests per second; 0 means no limit

	connections bool // whether connections are shown too
	countsSent  bool // whether the limit counts only requests that were sent
}

const unlimited = math.MaxUint64

// terms validates req and returns the parameters of the watcher that it describes. Errors are of
// type rejection.
func (r *Registry) terms(req *tappb.WatchRequest) (terms, error) {
	t := terms{
		limit: req.GetLimit(), sample: req.GetSample(),
		fields: req.GetFields(), explain: req.GetExplain(), maxRPS: req.GetMaxRps(), connections: true, countsSent: true,
	}
	// The limit 0 of the message means none.
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
		t.body = int(min(int64(n), int64(r.maxBody)))
	}
	var err error
	if t.outcome, err = outcomeOf(req.GetResponse()); err != nil {
		return terms{}, reject(codes.InvalidArgument, err)
	}
	t.match, err = r.filter(req.GetMatch(), req.GetHeaders())
	return t, err
}

// checkNumbers returns an error if req's sample or duration is out of range. Follow also calls it,
// before it connects to any process.
func checkNumbers(req *tappb.WatchRequest) error {
	if s := req.GetSample(); math.IsNaN(s) || s < 0 || s > 1 {
		return fmt.Errorf("sample: %v must be from 0 to 1", s)
	}
	if d := req.GetDuration(); d != nil && (!d.IsValid() || d.AsDuration() <= 0) {
		return errors.New("duration: must be positive")
	}
	return nil
}
