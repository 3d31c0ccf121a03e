package tap

import (
	"fmt"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/proto"
)

// maxConditions bounds what one watcher can make every request pay for.
const (
	maxConditions = 1000
	maxMatchBytes = 64 << 10
)

// invalid is a match that cannot be compiled. where is a path into the
// message, outermost first.
type invalid struct{ where, what string }

func (e *invalid) Error() string { return "match" + e.where + ": " + e.what }

func bad(where, format string, args ...any) error {
	return &invalid{where, fmt.Sprintf(format, args...)}
}

// compile checks a match and makes a condition of it. The error names the
// part that is wrong.
func compile(m *pb.ObserveRequest_Match) (*condition, error) {
	if m.GetMatch() == nil {
		return nil, bad("", "missing")
	}
	if proto.Size(m) > maxMatchBytes {
		return nil, errTooLarge
	}
	k := compiler{left: maxConditions}
	c, err := k.match("", m)
	if err != nil {
		return nil, err
	}
	return &c, nil
}

var errTooLarge = bad("", "more than %d KiB", maxMatchBytes>>10)

type compiler struct{ left int }

func (k *compiler) match(where string, m *pb.ObserveRequest_Match) (condition, error) {
	if k.left--; k.left < 0 {
		return condition{}, bad("", "more than %d conditions", maxConditions)
	}
	switch m := m.GetMatch().(type) {
	case *pb.ObserveRequest_Match_All:
		return k.seq(opAll, where+".all", m.All)
	case *pb.ObserveRequest_Match_Any:
		return k.seq(opAny, where+".any", m.Any)
	case *pb.ObserveRequest_Match_Not:
		sub, err := k.match(where+".not", m.Not)
		return condition{op: opNot, subs: []condition{sub}}, err
	case *pb.ObserveRequest_Match_Source:
		return tcpMatch(where+".source", m.Source, opSource)
	case *pb.ObserveRequest_Match_Destination:
		return tcpMatch(where+".destination", m.Destination, opDestination)
	case *pb.ObserveRequest_Match_DestinationLabel:
		return labelMatch(where+".destination_label", opDestinationLabel, m.DestinationLabel)
	case *pb.ObserveRequest_Match_RouteLabel:
		return labelMatch(where+".route_label", opRouteLabel, m.RouteLabel)
	case *pb.ObserveRequest_Match_Http_:
		return httpMatch(where+".http", m.Http)
	}
	return condition{}, bad(where, "missing")
}

// seq skips members without a value, as linkerd's proxy does.
func (k *compiler) seq(op op, where string, seq *pb.ObserveRequest_Match_Seq) (condition, error) {
	c := condition{op: op}
	for i, m := range seq.GetMatches() {
		if m.GetMatch() == nil {
			continue
		}
		sub, err := k.match(fmt.Sprintf("%s[%d]", where, i), m)
		if err != nil {
			return condition{}, err
		}
		c.subs = append(c.subs, sub)
	}
	return c, nil
}
