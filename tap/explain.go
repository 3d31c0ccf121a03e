package tap

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Explain returns a layer that records what the layers below it choose, such as a route or an
// endpoint, see [layer.Explain]. It records them only while a watcher requests explanations. You
// should place it above the layers that choose, such as profiles and balancers, and a [Layer] or
// [Connections] below them. The Layer adds the choices to its ResponseEnd events, and Connections
// to its ConnectionClose events. The accessor of the Layer only tells the types of the messages. For the
// servers of connections use [ExplainConnections]. With a nil reg, nothing watches.
//
// Admission: Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: bodies are not read.
//
// Errors: forwarded.
//
// Cost: one atomic load if no watcher requests explanations. Otherwise the choices for every
// request are recorded, because the Layer below decides only later which requests it shows.
func Explain[Req, Rsp any](reg *Registry, _ layer.Accessor[Req, Rsp]) layer.Layer[Req, Rsp] {
	return explain[Req, Rsp](reg)
}

// ExplainConnections returns a layer for a tcplayer.Server that records, while a watcher requests
// explanations, what the layers below it choose for each connection. [Connections] below it adds the
// choices to its ConnectionClose events. For requests use [Explain], which describes the rest.
func ExplainConnections(reg *Registry) layer.Layer[net.Conn, tcplayer.ByteCount] {
	return explain[net.Conn, tcplayer.ByteCount](reg)
}

func explain[Req, Rsp any](reg *Registry) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &explained[Req, Rsp]{Service: next, reg: reg}
	}
}

// explained is the service that [Explain] makes. It records what the layers below do with a
// request.
type explained[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg *Registry
}

// Call makes the layers below record their choices in ctx if a watcher asks for explanations.
func (e *explained[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if present := e.reg.active.Load(); present != nil && present.explain {
		ctx, _ = layer.Explain(ctx)
	}
	return e.Service.Call(ctx, req)
}

// Next returns the inner service, for [layer.Describe].
func (e *explained[Req, Rsp]) Next() layer.Service[Req, Rsp] { return e.Service }

// Describe returns a node with the attribute "on". The attribute is true while choices are
// recorded.
func (e *explained[Req, Rsp]) Describe() layer.Node {
	present := e.reg.active.Load()
	return layer.Node{Name: "explain", State: layer.State{{Key: "on", Value: present != nil && present.explain}}}
}

// leastSecret is how many bytes a secret value must contain to be replaced in explanations, and
// leastPart the same for a part of it, such as one cookie. Shorter values and parts stay, because
// they also occur in harmless text.
const (
	leastSecret = 4
	leastPart   = 8
)

// isBetween reports whether r separates the parts of a secret header value, such as the cookies
// in a Cookie field.
func isBetween(r rune) bool { return strings.ContainsRune(` ;,="`, r) }

// secretsOf returns the texts of the request that must not appear in an explanation: withheld header
// values, user information and withheld queries. An explanation could contain them, for example in an
// error with a URL. Longer texts come first, because they may contain shorter ones. The result is not
// nil.
func (x *exchange[Req, Rsp]) secretsOf(r *Registry) []string {
	all := []string{}
	// add adds a secret text, unless it is so short that hiding it would change other texts too.
	add := func(s string) {
		if len(s) < leastSecret {
			return
		}
		all = append(all, s)
		if quoted := strconv.Quote(s); len(quoted) != len(s)+2 { // as errors quote it
			all = append(all, quoted[1:len(quoted)-1])
		}
	}
	for name, value := range x.access.RequestHeader(x.req).All() {
		if !r.secret(name) {
			continue
		}
		add(value)
		for part := range strings.FieldsFuncSeq(value, isBetween) {
			if len(part) >= leastPart {
				add(part)
			}
		}
	}
	authority := x.access.Authority(x.req)
	// What withoutUser removes is the user information.
	add(strings.TrimSuffix(authority, withoutUser(authority)))
	query := x.access.Query(x.req)
	if !r.showsQueries() {
		add(query)
	}
	for param := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(param, "=")
		// A name that cannot be decoded could be that of a secret.
		if plain, err := url.QueryUnescape(name); err != nil || r.secret(plain) {
			add(value)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return all
}

// choices returns the explanation of the request, with secret texts replaced. Values that could hold
// text are converted to text first.
func (x *exchange[Req, Rsp]) choices() []layer.Node {
	choices := layer.PickInfoFromContext(x.ctx).Explanation.Choices()
	if len(choices) == 0 {
		return choices
	}
	pairs := make([]string, 0, 2*len(x.secrets))
	for _, secret := range x.secrets {
		pairs = append(pairs, secret, redacted)
	}
	return shownNodes(choices, strings.NewReplacer(pairs...))
}

// shownNodes returns copies of nodes whose texts are replaced by without.
func shownNodes(nodes []layer.Node, without *strings.Replacer) []layer.Node {
	if len(nodes) == 0 {
		return nil
	}
	out := make([]layer.Node, 0, len(nodes))
	for _, n := range nodes {
		shown := layer.Node{Name: n.Name, State: make(layer.State, 0, len(n.State)), Children: shownNodes(n.Children, without)}
		for _, a := range n.State {
			shown.State = append(shown.State, layer.Attr{Key: a.Key, Value: shownAttr(a.Value, without)})
		}
		if n.Next != nil {
			shown.Next = &shownNodes([]layer.Node{*n.Next}, without)[0]
		}
		out = append(out, shown)
	}
	return out
}

// shownAttr returns value as watchers may see it: numbers and addresses unchanged, and any other value
// as text in which without has replaced the secrets.
func shownAttr(value any, without *strings.Replacer) any {
	switch v := value.(type) {
	case nil, bool, int, int32, int64, uint32, uint64, float32, float64, time.Duration, netip.Addr, netip.AddrPort:
		return value
	case string:
		return without.Replace(v)
	}
	return without.Replace(fmt.Sprint(value))
}
