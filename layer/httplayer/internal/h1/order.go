package h1

import (
	"context"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// order holds the field lines of a received header as text, which tells in which order the fields
// arrived. A proxy needs it because a header map is unordered. The names in it are canonical. It shares
// the memory of the map's strings, so it costs no copy. Fields that a layer has added are not in it,
// and are sent last.
type order string

// maxOrder limits how many names of an order are used, because each is searched for among the others.
const maxOrder = 128

// names returns the names in o in the order of their first fields, each once. It stores them in memory,
// an empty slice, or in a larger one.
func (o order) names(memory []string) []string {
	names := memory
	var seen message.Lengths
	for o != "" && len(names) < maxOrder {
		end := strings.IndexByte(string(o), ':')
		name := string(o[:end])
		if !seen.Add(name) || !slices.Contains(names, name) {
			names = append(names, name)
		}
		o = o[end:]
		o = o[strings.IndexByte(string(o), '\n')+1:]
	}
	return names
}

// receivedRequest returns the HTTP/1 request of a client that is being served and forwarded with ctx.
// It returns nil if there is none, or if it was received over HTTP/2.
func receivedRequest(ctx context.Context) *request {
	r, _ := ctx.Value(receivedKey{}).(*request)
	return r
}

// receivedKey is the context key of a received request. It is separate from message.InformerKey, whose
// value middleware may replace.
type receivedKey struct{}

// order returns the order of r's header fields. r may be nil.
func (r *request) order() order {
	if r == nil {
		return ""
	}
	return r.arrived
}

// answerOrder returns the order in which the fields of an upstream's response to r arrived, or ""
// without such a response. With retries or hedges it may be the order of another response than the
// forwarded one, which does no harm.
func (r *request) answerOrder() order {
	if answered := r.answered.Load(); answered != nil {
		return *answered
	}
	return ""
}
