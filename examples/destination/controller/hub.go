package controller

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// hub contains the open streams of one method, such as Get: a set of streams for each name or
// port. The controller's lock guards it.
type hub[K comparable, M any] map[K]map[*subscription[M]]struct{}

// subscription is one stream's message queue. Senders hold the controller's lock, so they never
// wait for a client: if a message does not fit, the sender closes slow, which ends the stream.
type subscription[M any] struct {
	queue chan M
	slow  chan struct{} // closed when a message does not fit in the queue
}

// subscribe adds a stream for name and returns its empty queue.
func (f hub[K, M]) subscribe(name K) *subscription[M] {
	s := &subscription[M]{queue: make(chan M, queueLength), slow: make(chan struct{})}
	if f[name] == nil {
		f[name] = make(map[*subscription[M]]struct{})
	}
	f[name][s] = struct{}{}
	return s
}

// unsubscribe removes the subscription s to name, if it has not been removed before.
func (f hub[K, M]) unsubscribe(name K, s *subscription[M]) {
	delete(f[name], s)
	if len(f[name]) == 0 {
		delete(f, name)
	}
}

// publish queues messages for all streams that requested name. If they do not all fit into a
// stream's queue, publish queues none of them and ends the stream, because a client with only
// some of them would be in a wrong state.
func (f hub[K, M]) publish(name K, messages []M) {
	for s := range f[name] {
		// The check is exact: senders hold the lock, and receivers only make room.
		if len(s.queue)+len(messages) > cap(s.queue) {
			close(s.slow)
			// Deleting during the iteration is allowed in Go.
			f.unsubscribe(name, s)
			continue
		}
		for _, m := range messages {
			s.queue <- m
		}
	}
}

// endpointUpdates returns the messages for a name's Get streams when its entry changes from
// previous to current: the differences, or everything for the first configuration.
func (c *Controller) endpointUpdates(current, previous *entry) []*pb.Update {
	// A stream that is older than the first configuration has not received anything.
	if !c.loaded {
		return []*pb.Update{current.snapshot()}
	}
	return current.difference(previous)
}

// changes returns now for the streams of a profile or policy that may have changed. It returns
// nothing if before is equal, except for the first configuration, which streams are waiting for.
func changes[M any, P interface {
	*M
	proto.Message
}](c *Controller, now, before P) []P {
	// Before the first configuration, streams wait for any message, even one that is equal to nothing.
	if c.loaded && proto.Equal(now, before) {
		return nil
	}
	return []P{now}
}
