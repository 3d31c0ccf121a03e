package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gotower/gotower/layer"
)

var errNoReply = errors.New("grpclayer: a layer returned no reply")

// newMessage returns an empty message of the type of m. It does not read m, because
// another attempt may be decoding into it.
func newMessage(m any) any {
	if p, ok := m.(protoreflect.Message); ok {
		return p.New().Interface()
	}
	if t := reflect.TypeOf(m); t != nil && t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface()
	}
	return m
}

// assign copies from to to, a message of the same type.
func assign(to, from any) error {
	dst, src := reflect.ValueOf(to), reflect.ValueOf(from)
	if !dst.IsValid() || !src.IsValid() || dst.Type() != src.Type() || dst.Kind() != reflect.Pointer || dst.IsNil() || src.IsNil() {
		return status.Error(codes.Internal, fmt.Sprintf("grpclayer: a layer returned a %T, want %T", from, to))
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

// pushbackKey is the trailer with the wait that a server requests before a retry (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// maxPushback is the longest wait.
const maxPushback = 24 * time.Hour

// Replayer is the [layer.Replayer] of gRPC. A call can be sent unchanged any number of times:
// the request of a unary call or of a stream of responses is a message in memory, and any other
// stream is opened again only before its first message.
type Replayer struct {
	// IsIdempotent reports whether calling a method twice has the effect of
	// calling it once. By default no method is idempotent. For a stream of
	// responses to one request see [Client.Stream].
	IsIdempotent func(c *Call) bool
}

// Idempotent calls IsIdempotent.
func (r Replayer) Idempotent(c *Call) bool { return r.IsIdempotent != nil && r.IsIdempotent(c) }

// Replay returns nil, because messages are in memory.
func (Replayer) Replay(*Call, int64) layer.Replay[*Call] { return nil }

// RetryAfter returns grpc-retry-pushback-ms (gRFC A6) in milliseconds, at most a
// day. Any other value forbids a retry.
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

// Drain cancels a stream.
func (Replayer) Drain(r *Reply) {
	if r != nil && r.stream != nil {
		r.stream.end(layer.ErrBodyClosedEarly)
	}
}
