package tap

import (
	"fmt"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// watchEventOf is the event of a message. No message is wrong, see eventOf.
func watchEventOf(m *tappb.WatchResponse) Event {
	if n := m.GetDropped(); n > 0 {
		return Event{Dropped: n}
	}
	own := m.GetEvent()
	e := eventOf(own.GetHttp())
	var id *pb.TapEvent_Http_StreamId
	switch {
	case e.ResponseEnd != nil:
		e.ResponseEnd.Explanation = nodesOf(own.GetExplanation())
		e.ResponseEnd.RequestBody = bodyOf(own.GetRequestBody())
		e.ResponseEnd.ResponseBody = bodyOf(own.GetResponseBody())
		return e
	case e.RequestInit != nil || e.ResponseInit != nil:
		return e
	case own.GetOpen() != nil:
		id, e.Open = own.GetOpen().GetId(), &ConnectionOpen{}
	case own.GetClose() != nil:
		c := own.GetClose()
		id, e.Close = c.GetId(), &ConnectionClose{
			SinceOpen: c.GetSinceOpen().AsDuration(), Sent: c.GetSent(), Received: c.GetReceived(), Err: c.GetError(),
		}
	}
	e.ID = StreamID{Base: id.GetBase(), Stream: id.GetStream()}
	return e
}

func (b *Body) proto() *tappb.Body {
	if b == nil {
		return nil
	}
	return &tappb.Body{Data: b.Data, Cut: b.Cut}
}

func bodyOf(m *tappb.Body) *Body {
	if m == nil {
		return nil
	}
	return &Body{Data: m.GetData(), Cut: m.GetCut()}
}

func nodesProto(nodes []layer.Node) []*tappb.Node {
	out := make([]*tappb.Node, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, nodeProto(n))
	}
	return out
}

// nodeProto has what a node wraps as the last of its children.
func nodeProto(n layer.Node) *tappb.Node {
	m := &tappb.Node{Name: valid(n.Name), Children: nodesProto(n.Children)}
	for _, a := range n.State {
		m.State = append(m.State, &tappb.Attribute{Key: valid(a.Key), Value: valid(fmt.Sprint(a.Value))})
	}
	if n.Next != nil {
		m.Children = append(m.Children, nodeProto(*n.Next))
	}
	return m
}

func nodesOf(ms []*tappb.Node) []layer.Node {
	if len(ms) == 0 {
		return nil
	}
	out := make([]layer.Node, 0, len(ms))
	for _, m := range ms {
		n := layer.Node{Name: m.GetName(), Children: nodesOf(m.GetChildren())}
		for _, a := range m.GetState() {
			n.State = append(n.State, layer.Attr{Key: a.GetKey(), Value: a.GetValue()})
		}
		out = append(out, n)
	}
	return out
}
