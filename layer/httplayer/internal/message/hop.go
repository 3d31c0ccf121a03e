package message

import (
	"net/http"
	"strings"
)

// IsHopByHop reports whether a field with a canonical name is a hop-by-hop field. The
// engine does not forward such a field but writes its own.
func IsHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// RemoveHopByHop removes the hop-by-hop fields, and those that Connection names, from a
// received header. It keeps the fields of an upgrade and TE: trailers.
func RemoveHopByHop(h http.Header) {
	upgrade := h["Upgrade"]
	upgrades := len(upgrade) > 0 && Listed(h["Connection"], "Upgrade")
	trailers := Listed(h["Te"], "trailers")
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade",
	} {
		delete(h, name)
	}
	if upgrades {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, upgrade
	}
	if trailers {
		h["Te"] = []string{"trailers"}
	}
}

// Listed reports whether a list in field values has the token, in any case.
func Listed(values []string, token string) bool {
	for _, value := range values {
		for value != "" {
			var item string
			item, value, _ = strings.Cut(value, ",")
			if strings.EqualFold(strings.Trim(item, " \t"), token) {
				return true
			}
		}
	}
	return false
}
