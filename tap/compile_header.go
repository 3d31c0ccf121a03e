package tap

import (
	"fmt"
	"net/textproto"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/tap/tappb"
)

// filter is the condition of requests that are met by m, if there is one, and
// by all of headers. Its errors are refusals.
func (r *Registry) filter(m *pb.ObserveRequest_Match, headers []*tappb.HeaderMatch) (*condition, error) {
	size := proto.Size(m)
	for _, h := range headers {
		size += proto.Size(h)
	}
	if size > maxMatchBytes {
		return nil, refuse(codes.InvalidArgument, errTooLarge)
	}
	k := compiler{left: maxConditions}
	all := condition{op: opAll}
	if m.GetMatch() != nil {
		c, err := k.match("", m)
		if err != nil {
			return nil, refuse(codes.InvalidArgument, err)
		}
		all.subs = append(all.subs, c)
	}
	if len(headers) > k.left {
		return nil, refuse(codes.InvalidArgument, bad("", "more than %d conditions", maxConditions))
	}
	for i, h := range headers {
		c, err := headerMatch(fmt.Sprintf("headers[%d]", i), h)
		if err != nil {
			return nil, refuse(codes.InvalidArgument, err)
		}
		// Who could compare it with one prefix after the other would know it.
		if c.compares() && r.secret(strings.ToLower(c.key)) {
			return nil, refuse(codes.PermissionDenied, fmt.Errorf(
				"headers[%d]: the value of %s is withheld: ask only whether it is present", i, strings.ToLower(c.key)))
		}
		c.mask = r.mask(strings.ToLower(c.key))
		all.subs = append(all.subs, c)
	}
	if len(all.subs) == 1 {
		return &all.subs[0], nil
	}
	return &all, nil
}

func headerMatch(where string, h *tappb.HeaderMatch) (condition, error) {
	if !isToken(h.GetName()) {
		return condition{}, fmt.Errorf("%s.name: missing or not a header name: %q", where, h.GetName())
	}
	c := condition{op: opHeader, key: textproto.CanonicalMIMEHeaderKey(h.GetName())}
	switch v := h.GetValue().(type) {
	case *tappb.HeaderMatch_Exact:
		c.text = v.Exact
	case *tappb.HeaderMatch_Prefix:
		c.text, c.starts = v.Prefix, true
	case *tappb.HeaderMatch_Present:
		if c.op = opHeaderPresent; !v.Present {
			return condition{op: opNot, subs: []condition{c}}, nil
		}
	default:
		return condition{}, fmt.Errorf("%s: neither exact nor prefix nor present", where)
	}
	return c, nil
}

// compares reports whether c looks at the value of a header field.
func (c *condition) compares() bool { return c.op == opHeader }
