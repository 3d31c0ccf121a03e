package h2

import (
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// fieldName holds what the engine needs to know about a field name. It is computed once per name,
// so that a received field needs neither parsing nor an allocation for its name.
type fieldName struct {
	lower, canonical string
	index            uint8 // index in the static table; 0 if it is not there
	kind             nameKind
}

// nameKind tells how a field with this name is treated: most are copied to the header, and others have rules.
type nameKind uint8

const (
	plainName nameKind = iota
	pseudoName
	connectionName // hop-by-hop field, which is not allowed in HTTP/2
	teName
	lengthName
	trailerName
	hostName
	invalidName // an invalid name, or the name of a field with an invalid value
)

// field is a decoded header field. A field with an invalid name or value gets a name of the kind
// invalidName.
type field struct {
	name  *fieldName
	value string
}

const fieldOverhead = 32 // bytes per entry of a dynamic table (RFC 7541, section 4.1)

func (f *field) size() int { return len(f.name.lower) + len(f.value) + fieldOverhead }

const staticEntries = 61

var (
	knownNames  = make(map[string]*fieldName) // keys are in lower case
	byCanonical = make(map[string]*fieldName) // also has the keys of knownNames
	staticTable = makeStaticTable()

	nameMethod    = knownNames[":method"]
	namePath      = knownNames[":path"]
	nameScheme    = knownNames[":scheme"]
	nameAuthority = knownNames[":authority"]
	nameStatus    = knownNames[":status"]
	nameProtocol  = knownNames[":protocol"]
	nameLength    = knownNames["content-length"]
	nameTrailer   = knownNames["trailer"]
)

// makeStaticTable returns the static table of RFC 7541, appendix A. It also stores the names in the
// table, and other common names, in the maps knownNames and byCanonical.
func makeStaticTable() (table [staticEntries + 1]field) {
	// The entries "name|value" in the order of the RFC; "_" stands for a blank in a value.
	const entries = `:authority| :method|GET :method|POST :path|/ :path|/index.html :scheme|http :scheme|https
 :status|200 :status|204 :status|206 :status|304 :status|400 :status|404 :status|500 accept-charset|
 accept-encoding|gzip,_deflate accept-language| accept-ranges| accept| access-control-allow-origin| age| allow|
 authorization| cache-control| content-disposition| content-encoding| content-language| content-length|
 content-location| content-range| content-type| cookie| date| etag| expect| expires| from| host| if-match|
 if-modified-since| if-none-match| if-range| if-unmodified-since| last-modified| link| location| max-forwards|
 proxy-authenticate| proxy-authorization| range| referer| refresh| retry-after| server| set-cookie|
 strict-transport-security| transfer-encoding| user-agent| vary| via| www-authenticate|`
	for i, entry := range strings.Fields(entries) {
		name, value, _ := strings.Cut(entry, "|")
		table[i+1] = field{know(name, uint8(i+1)), strings.ReplaceAll(value, "_", " ")}
	}
	for name := range strings.FieldsSeq(`te trailer connection keep-alive proxy-connection upgrade :protocol grpc-status
 grpc-message grpc-timeout grpc-encoding grpc-accept-encoding grpc-status-details-bin traceparent tracestate
 x-request-id x-forwarded-for x-forwarded-proto x-forwarded-host forwarded origin`) {
		know(name, 0)
	}
	return table
}

// know adds a name to knownNames and byCanonical, unless it is there. index is its place in the
// static table, or 0.
func know(lower string, index uint8) *fieldName {
	n := knownNames[lower]
	if n == nil {
		n = newName(lower)
		n.index = index
		knownNames[lower], byCanonical[n.canonical], byCanonical[lower] = n, n, n
	}
	return n
}

// newName returns the properties of a field name, which must be in lower case to be valid.
func newName(lower string) *fieldName {
	n := &fieldName{lower: lower, canonical: http.CanonicalHeaderKey(lower)}
	switch lower {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		n.kind = connectionName
	case "te":
		n.kind = teName
	case "content-length":
		n.kind = lengthName
	case "trailer":
		n.kind = trailerName
	case "host":
		n.kind = hostName
	default:
		switch {
		case strings.HasPrefix(lower, ":"):
			n.kind, n.canonical = pseudoName, lower
		case !message.ValidName(lower) || strings.ContainsFunc(lower, isUpper):
			n.kind = invalidName
		}
	}
	return n
}

func isUpper(r rune) bool { return r >= 'A' && r <= 'Z' }

// invalidValue returns a copy of f with a name of the kind invalidName, because f's value is
// invalid. The size stays the same.
func (f *field) invalidValue() field {
	name := *f.name
	name.kind, name.index = invalidName, 0
	return field{&name, f.value}
}

// trim removes white space from both ends of a request's values, except in pseudo-header fields.
// HTTP/2 does not allow it (RFC 9113, section 8.2.1), but net/http, nginx and haproxy accept it.
// Responses keep it, because grpc-go sends a grpc-message with the blanks of the error text.
func trim(fields []field) {
	for i := range fields {
		f := &fields[i]
		if v := f.value; v != "" && (v[0] <= ' ' || v[len(v)-1] <= ' ') && f.name.kind != pseudoName {
			f.value = strings.Trim(v, " \t")
		}
	}
}

// checkFields returns the content-length among a message's fields, or -1 without that field. If
// HTTP/2 does not allow one of the fields, it returns the reason.
func checkFields(fields []field) (length int64, reason string) {
	length = -1
	for i := range fields {
		f := &fields[i]
		switch f.name.kind {
		// The caller has taken out the valid pseudo-header fields, which come first.
		case pseudoName, connectionName, invalidName:
			return 0, "field that is not allowed: " + quoted(f.name.lower)
		case lengthName:
			if length >= 0 {
				return 0, "two content-length fields"
			}
			if length = message.ParseLength(f.value); length < 0 {
				return 0, "invalid content-length"
			}
		}
	}
	return length, ""
}

// makeHeader returns a header with the given fields. Its value slices use slab's memory, and are
// allocated when slab is used up.
func makeHeader(fields []field, slab []string) http.Header {
	h := make(http.Header, len(fields))
	var seen message.Lengths
	for i := range fields {
		f := &fields[i]
		key := f.name.canonical
		var values []string
		if seen.Add(key) {
			values = h[key]
		}
		switch {
		case values != nil:
			h[key] = append(values, f.value)
		case len(slab) == 0:
			h[key] = []string{f.value}
		default:
			// The capacity of 1 makes a later append copy, instead of overwriting the next value.
			slab[0] = f.value
			h[key], slab = slab[:1:1], slab[1:]
		}
	}
	return h
}
