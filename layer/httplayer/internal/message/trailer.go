package message

import (
	"net/http"
	"strings"
)

// ValidTrailer reports whether the field with the given canonical name may be a trailer.
// Hop-by-hop fields, Content-Length and Host may not.
func ValidTrailer(name string) bool {
	return ValidName(name) && name != "Content-Length" && name != "Host" && !IsHopByHop(name)
}

// Announced returns a header with an entry for each valid trailer name in values, which are
// the values of a Trailer field. The entries are nil. Without values the result is nil.
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

// TrailerNames returns the value of the Trailer field that announces trailer. It leaves out
// invalid names, and is "" without a valid name.
func TrailerNames(trailer http.Header) string {
	var names []string
	for name := range trailer {
		if ValidTrailer(http.CanonicalHeaderKey(name)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
