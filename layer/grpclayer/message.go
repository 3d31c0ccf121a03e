package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gotower/gotower/layer"
)

var errNoReply = errors.New("grpclayer: a layer answered a call with nothing")

// fresh returns an empty message of the type of m. It does not look into m, which
// another try may be decoding into: a generated message says what it is by its Go
// type. A dynamic one has a type of its own, which stays.
func fresh(m any) any {
	if p, ok := m.(protoreflect.Message); ok {
		return p.New().Interface()
	}
	if t := reflect.TypeOf(m); t != nil && t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface()
	}
	return m
}

// assign makes to a copy of from, which is a message of the same type.
func assign(to, from any) error {
	dst, src := reflect.ValueOf(to), reflect.ValueOf(from)
	if !dst.IsValid() || !src.IsValid() || dst.Type() != src.Type() || dst.Kind() != reflect.Pointer || dst.IsNil() || src.IsNil() {
		return status.Error(codes.Internal, fmt.Sprintf("grpclayer: a layer answered with a %T, and the caller wants a %T", from, to))
	}
	p, ok := to.(proto.Message)
	if !ok {
		dst.Elem().Set(src.Elem())
		return nil
	}
	proto.Reset(p)
	if m, ok := from.(proto.Message); ok {
		proto.Merge(p, m)
	}
	return nil
}

// pushbackKey is the trailer by which a server says when it wants to see a
// call again (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// maxPushback is the longest that a server is waited for.
const maxPushback = 24 * time.Hour

// Replayer is the [layer.Replayer] of gRPC. A call can be sent unchanged any
// number of times: the request of a unary call or of a stream of responses is a
// message in memory, and any other stream is opened again only before its first
// message.
type Replayer struct {
	// Safe reports whether calling a method twice has the effect of calling it
	// once. The default is that none is safe. A stream of responses to a single
	// request is safe or not as a unary call is: see [Client.Stream].
	IsIdempotent func(c *Call) bool
}

// Idempotent asks Safe.
func (r Replayer) Idempotent(c *Call) bool { return r.IsIdempotent != nil && r.IsIdempotent(c) }

// Replay returns nil: there is nothing to keep.
func (Replayer) Replay(*Call, int64) layer.Replay[*Call] { return nil }

// RetryAfter reads grpc-retry-pushback-ms, as gRFC A6 says: a number of
// milliseconds, held to a day, is how long to wait; anything else asks not to
// send the call again.
func (Replayer) RetryAfter(_ *Reply, err error) (time.Duration, bool) {
	call, ok := errors.AsType[*callError](err)
	if !ok || len(call.pushback) == 0 {
		return 0, false
	}
	if len(call.pushback) > 1 {
		return -1, true
	}
	ms, err := strconv.ParseUint(call.pushback[0], 10, 31)
	if err != nil {
		return -1, true
	}
	return min(time.Duration(ms)*time.Millisecond, maxPushback), true
}

// Peek returns r: a failure of a unary call is an error, and a stream is not
// repeated after its header.
func (Replayer) Peek(_ context.Context, r *Reply) (*Reply, bool) { return r, false }

// Drain cancels a stream. A unary reply holds nothing.
func (Replayer) Drain(r *Reply) {
	if r != nil && r.stream != nil {
		r.stream.end(layer.ErrBodyClosedEarly)
	}
}

// step is a change that the balancer is yet to make, and what follows from it.
type step struct {
	change  change
	closing []*conn // what the change removes
}

// push tells the balancer of a step, without waiting for it: gRPC must not.
func (t *towerBalancer) push(s step) {
	current := slices.Collect(maps.Values(t.members))
	t.current.Store(&current)
	t.mu.Lock()
	t.queue = append(t.queue, s)
	t.mu.Unlock()
	select {
	case t.queued <- struct{}{}:
	default:
	}
}

// changes yields the changes for the balancer. After a change, removed
// endpoints get no more calls, and waiting calls pick again.
func (t *towerBalancer) changes(yield func(change) bool) {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.queued:
		}
		t.mu.Lock()
		steps := t.queue
		t.queue = nil
		t.mu.Unlock()
		for _, s := range steps {
			if !yield(s.change) {
				return
			}
			for _, c := range s.closing {
				c.close()
			}
			t.publish()
		}
	}
}

func errStrange(addresses []string) error {
	return fmt.Errorf("grpclayer: %s: not an IP address and a port; use a resolver that finds those", strings.Join(addresses, ", "))
}
