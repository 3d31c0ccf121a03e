package controller

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// hub has the streams of one kind by name. The controller's lock guards it.
type hub[M any] map[string]map[*subscription[M]]struct{}

// subscription is the queue of one stream. Only the holder of the controller's lock writes
// to it.
type subscription[M any] struct {
	queue chan M
	slow  chan struct{} // closed when the queue is full
}

// subscribe adds a stream for a name.
func (f hub[M]) subscribe(name string) *subscription[M] {
	s := &subscription[M]{queue: make(chan M, queueLength), slow: make(chan struct{})}
	if f[name] == nil {
		f[name] = make(map[*subscription[M]]struct{})
	}
	f[name][s] = struct{}{}
	return s
}

// unsubscribe removes a stream. It may be called again.
func (f hub[M]) unsubscribe(name string, s *subscription[M]) {
	delete(f[name], s)
	if len(f[name]) == 0 {
		delete(f, name)
	}
}

// publish queues messages for all streams of a name. A stream without room gets none of
// them and ends, because its state would be incomplete.
func (f hub[M]) publish(name string, messages []M) {
	for s := range f[name] {
		if len(s.queue)+len(messages) > cap(s.queue) {
			close(s.slow)
			f.unsubscribe(name, s)
			continue
		}
		for _, m := range messages {
			s.queue <- m
		}
	}
}

// endpointUpdates returns the messages for the streams of a name whose entry changed.
// After the first Set the message has the whole entry.
func (c *Controller) endpointUpdates(now, before *entry) []*pb.Update {
	if !c.loaded {
		return []*pb.Update{now.snapshot()}
	}
	return now.difference(before)
}

// profileUpdates returns the messages for profile streams, which get the whole profile.
func (c *Controller) profileUpdates(now, before *entry) []*pb.DestinationProfile {
	if c.loaded && proto.Equal(now.describe(), before.describe()) {
		return nil
	}
	return []*pb.DestinationProfile{now.describe()}
}
