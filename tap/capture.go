package tap

import (
	"strings"

	"github.com/gotower/gotower/layer"
)

// redacted is what is shown for the value of a secret.
const redacted = "[redacted]"

// capture copies fields for an event, in their order, without secrets. The
// result is never nil.
func (r *Registry) capture(fields layer.Fields) []Field {
	out := []Field{}
	for name, value := range fields.All() {
		name = strings.ToLower(name)
		if r.secret(name) {
			value = redacted
		}
		out = append(out, Field{name, value})
	}
	return out
}

// secret reports whether the value of a field is withheld. What the options
// say comes first.
func (r *Registry) secret(name string) bool {
	if hide, said := r.secrets[name]; said {
		return hide
	}
	switch name {
	case "authorization", "cookie", "proxy-authorization", "set-cookie":
		return true
	}
	return false
}

func isEmpty(fields layer.Fields) bool {
	for range fields.All() {
		return false
	}
	return true
}
