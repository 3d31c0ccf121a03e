package tap

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// eventBytes is room for an event with the labels of a pod on both sides.
const eventBytes = 512

// message is the event as a message of linkerd's service, with all that is in it
// as it goes over the wire, and so in what a message keeps of fields it does not
// know. Text that is not valid UTF-8, which a message cannot carry, is mended; the
// values of fields are bytes there and stay as they are.
func (e *Event) message() *pb.TapEvent {
	w := wire{make([]byte, 0, eventBytes)}
	w.event(e)
	m := &pb.TapEvent{}
	m.ProtoReflect().SetUnknown(w.b)
	return m
}

// watchMessage is the event as a message of gotower's own service.
func (e *Event) watchMessage() (*tappb.WatchResponse, error) {
	if e.Dropped > 0 {
		return &tappb.WatchResponse{What: &tappb.WatchResponse_Dropped{Dropped: e.Dropped}}, nil
	}
	w := wire{make([]byte, 0, eventBytes)}
	whole := w.open(1)
	at := w.open(1)
	w.event(e)
	w.close(at)
	if own := e.extras(); own != nil {
		var err error
		if w.b, err = (proto.MarshalOptions{}).MarshalAppend(w.b, own); err != nil {
			return nil, err
		}
	}
	w.close(whole)
	m := &tappb.WatchResponse{}
	m.ProtoReflect().SetUnknown(w.b)
	return m, nil
}

// extras are what an event has besides what is linkerd's; nil for most.
func (e *Event) extras() *tappb.Event {
	switch end := e.ResponseEnd; {
	case e.Open != nil:
		return &tappb.Event{Open: &tappb.ConnectionOpen{Id: e.ID.proto()}}
	case e.Close != nil:
		return &tappb.Event{Close: &tappb.ConnectionClose{
			Id: e.ID.proto(), SinceOpen: durationpb.New(e.Close.SinceOpen),
			Sent: e.Close.Sent, Received: e.Close.Received, Error: valid(e.Close.Err),
		}}
	case end != nil && (len(end.Explanation) > 0 || end.RequestBody != nil || end.ResponseBody != nil):
		return &tappb.Event{
			Explanation: nodesProto(end.Explanation), RequestBody: end.RequestBody.proto(), ResponseBody: end.ResponseBody.proto(),
		}
	}
	return nil
}

func (id StreamID) proto() *pb.TapEvent_Http_StreamId {
	return &pb.TapEvent_Http_StreamId{Base: id.Base, Stream: id.Stream}
}

// event writes the fields of a TapEvent.
func (w *wire) event(e *Event) {
	w.address(1, e.Source)
	w.address(2, e.Destination)
	w.labels(4, e.DestinationLabels)
	w.labels(5, e.SourceLabels)
	w.number(6, uint64(int32(e.Direction)))
	w.labels(7, e.RouteLabels)
	if e.RequestInit == nil && e.ResponseInit == nil && e.ResponseEnd == nil {
		return
	}
	http := w.open(3)
	switch {
	case e.RequestInit != nil:
		one := w.begin(1, e.ID)
		w.requestInit(e.RequestInit)
		w.close(one)
	case e.ResponseInit != nil:
		one := w.begin(2, e.ID)
		w.responseInit(e.ResponseInit)
		w.close(one)
	default:
		one := w.begin(3, e.ID)
		w.responseEnd(e.ResponseEnd)
		w.close(one)
	}
	w.close(http)
}

// begin opens a message that begins with an id.
func (w *wire) begin(field protowire.Number, id StreamID) (at int) {
	at = w.open(field)
	first := w.open(1)
	w.number(1, uint64(id.Base))
	w.number(2, id.Stream)
	w.close(first)
	return at
}
