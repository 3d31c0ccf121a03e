package message

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// IsHopByHop reports whether the field with the given canonical name is a hop-by-hop field.
// The engines do not forward such a field. If the outgoing message needs the field, the
// engine writes it itself.
func IsHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// Lengths is the set of the lengths, modulo 64, of some field names. A name of another length is not
// one of them, which saves looking for it. The zero value is an empty set.
type Lengths uint64

// Add adds the length of name. It reports whether the set had it before.
func (s *Lengths) Add(name string) (had bool) {
	length := Lengths(1) << (len(name) % 64)
	had = *s&length != 0
	*s |= length
	return had
}

// RemoveHopByHop removes the hop-by-hop fields from h, which is a received message's header. It
// also removes the fields that Connection names. It keeps Connection and Upgrade if they request an
// upgrade, and the field TE with the value trailers. An upgrade to h2c is removed, because HTTP/2
// would bypass the layers.
func RemoveHopByHop(h http.Header) {
	upgrade := h["Upgrade"]
	upgrades := Upgrade(h) != "" && !Listed(upgrade, "h2c")
	trailers := Listed(h["Te"], "trailers")
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	// What must stay was read above and is put back below.
	maps.DeleteFunc(h, func(name string, _ []string) bool { return IsHopByHop(name) })
	if upgrades {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, upgrade
	}
	if trailers {
		h["Te"] = []string{"trailers"}
	}
}

// CloseClient is the name of a response header with which layers close the client's connection:
// the Handler then adds Connection: close. An endpoint cannot send this header, because the name
// is in lower case and the names of received headers are canonical.
const CloseClient = "connection"

// Listed reports whether one of the values contains the token. Each value is a
// comma-separated list. Case is ignored.
func Listed(values []string, token string) bool {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.Trim(item, " \t"), token) {
				return true
			}
		}
	}
	return false
}

// Upgrade returns the protocols of an upgrade that h requests or accepts, or "" without an
// upgrade.
func Upgrade(h http.Header) string {
	values := h["Upgrade"]
	if len(values) == 0 || !Listed(h["Connection"], "Upgrade") {
		return ""
	}
	return strings.Join(values, ", ")
}

// Offers reports whether offer, the result of [Upgrade] for a request, contains each protocol in choice, that of
// its response. A client may offer several protocols, of which the server selects one (RFC 9110, section 7.8).
func Offers(offer, choice string) bool {
	for protocol := range strings.SplitSeq(choice, ",") {
		if protocol = strings.Trim(protocol, " \t"); protocol == "" || !Listed([]string{offer}, protocol) {
			return false
		}
	}
	return true
}

// ValidTrailer reports whether the field with the given canonical name may be a trailer.
// Hop-by-hop fields, Content-Length and Host may not.
func ValidTrailer(name string) bool {
	return ValidName(name) && name != "Content-Length" && name != "Host" && !IsHopByHop(name)
}

// Announced returns the trailers that a message announces. values are those of its Trailer field. The
// result maps each valid name to nil, and is itself nil if there are no values.
func Announced(values []string) http.Header {
	if len(values) == 0 {
		return nil
	}
	trailer := make(http.Header)
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); ValidTrailer(name) {
				trailer[name] = nil
			}
		}
	}
	return trailer
}

// TrailerNames returns a Trailer field's value that announces trailer, such as "Grpc-Status,
// Grpc-Message". It leaves out invalid names, and returns "" if there is no valid name.
func TrailerNames(trailer http.Header) string {
	var names []string
	for name := range trailer {
		if ValidTrailer(http.CanonicalHeaderKey(name)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// date is a formatted Date field, and the second of Unix time for which it is valid.
type date struct {
	second int64
	value  string
}

var today atomic.Pointer[date]

// Date returns the value of a Date field for the current time. It formats the value at most
// once a second and caches it.
func Date() string {
	now := time.Now()
	if d := today.Load(); d != nil && d.second == now.Unix() {
		return d.value
	}
	d := &date{now.Unix(), now.UTC().Format(http.TimeFormat)}
	today.Store(d)
	return d.value
}

// StatusLines holds the [http.Response.Status] of each status, such as "200 OK".
var StatusLines = func() (lines [1000]string) {
	for status := range lines {
		lines[status] = fmt.Sprintf("%03d %s", status, http.StatusText(status))
	}
	return lines
}()
