package controller

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// hub contains the open streams of one method, such as Get. The key of the outer map is the
// name or port that a stream requested, and the inner map is a set of streams. The lock of
// the controller guards both.
type hub[K comparable, M any] map[K]map[*subscription[M]]struct{}

// subscription is the queue of the messages of one stream. If a message does not fit in the
// queue, the sender closes the channel in the field slow, which ends the stream. A sender must
// hold the lock of the controller.
type subscription[M any] struct {
	queue chan M
	slow  chan struct{} // closed when a message does not fit in the queue
}

// subscribe adds a stream for name and returns its queue, which is empty.
func (f hub[K, M]) subscribe(name K) *subscription[M] {
	s := &subscription[M]{queue: make(chan M, queueLength), slow: make(chan struct{})}
	if f[name] == nil {
		f[name] = make(map[*subscription[M]]struct{})
	}
	f[name][s] = struct{}{}
	return s
}

// unsubscribe removes the subscription s of name. It has no effect if s has been removed
// already.
func (f hub[K, M]) unsubscribe(name K, s *subscription[M]) {
	delete(f[name], s)
	if len(f[name]) == 0 {
		delete(f, name)
	}
}

// publish queues messages for all streams of name. If the queue of a stream has no room for
// all messages, publish queues none of them and ends the stream. A client with only some of
// them would have an incomplete state.
func (f hub[K, M]) publish(name K, messages []M) {
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

// endpointUpdates returns the messages for the Get streams of a name when its entry changes
// from before to now. The messages contain the differences. At the first Set or Use, they
// contain the whole entry instead.
func (c *Controller) endpointUpdates(now, before *entry) []*pb.Update {
	if !c.loaded {
		return []*pb.Update{now.snapshot()}
	}
	return now.difference(before)
}

// changes returns the message for streams when a profile or policy may have changed from before to
// now. The message is the value now. If both values are equal, the result is empty, except at the
// first Set or Use.
func changes[M any, P interface {
	*M
	proto.Message
}](c *Controller, now, before P) []P {
	if c.loaded && proto.Equal(now, before) {
		return nil
	}
	return []P{now}
}
