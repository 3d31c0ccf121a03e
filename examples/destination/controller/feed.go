package controller

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// feed is the streams of one kind, by the name they follow. The controller's
// lock guards it.
type feed[M any] map[string]map[*subscription[M]]struct{}

// subscription is the way from the controller to one stream. Only the holder
// of the controller's lock writes to it.
type subscription[M any] struct {
	queue chan M
	slow  chan struct{} // closed once the queue was too short
}

// subscribe adds a stream that follows a name.
func (f feed[M]) subscribe(name string) *subscription[M] {
	s := &subscription[M]{queue: make(chan M, queueLength), slow: make(chan struct{})}
	if f[name] == nil {
		f[name] = make(map[*subscription[M]]struct{})
	}
	f[name][s] = struct{}{}
	return s
}

// unsubscribe forgets a stream, and the name with its last one. It may be
// called again.
func (f feed[M]) unsubscribe(name string, s *subscription[M]) {
	delete(f[name], s)
	if len(f[name]) == 0 {
		delete(f, name)
	}
}

// publish gives messages to all who follow name. One for whom there is no
// room gets none of them and is cut off: with a piece missing, what it knows
// would be wrong for good.
func (f feed[M]) publish(name string, messages []M) {
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

// news is what the followers of a name are told when its entry changes. The
// first state that a controller gets is news to all who waited for it.
func (c *Controller) news(now, before *entry) []*pb.Update {
	if !c.loaded {
		return []*pb.Update{now.snapshot()}
	}
	return now.difference(before)
}

// newsOfProfile is the same for profiles, which are told whole.
func (c *Controller) newsOfProfile(now, before *entry) []*pb.DestinationProfile {
	if c.loaded && proto.Equal(now.describe(), before.describe()) {
		return nil
	}
	return []*pb.DestinationProfile{now.describe()}
}
