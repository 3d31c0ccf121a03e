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

// newMessage returns a new, empty message of the same type as m. It does not read the
// content of m, because another attempt may be decoding into it.
func newMessage(m any) any {
	if p, ok := m.(protoreflect.Message); ok {
		return p.New().Interface()
	}
	if t := reflect.TypeOf(m); t != nil && t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface()
	}
	return m
}

// assign copies the content of one message, the argument from, into another one, the argument to.
// It returns an error if their types differ.
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

// pushbackKey is the trailer field in which a server requests a wait before a retry (gRFC
// A6).
const pushbackKey = "grpc-retry-pushback-ms"

// maxPushback is the longest wait that is sent or accepted in the trailer field
// pushbackKey.
const maxPushback = 24 * time.Hour

// Replayer is the [layer.Replayer] of gRPC. A call can be sent any number of times, without
// storing a body. The request of a unary call, or of a stream with one request, is a
// message in memory. Any other stream is opened again only before its first message.
type Replayer struct {
	// IsIdempotent reports whether sending c twice has the same effect as sending it once.
	// If the field is nil, no method is idempotent. [Client.Stream] documents which streams
	// can be repeated.
	IsIdempotent func(c *Call) bool
}

// Idempotent returns the result of IsIdempotent, or false if the field IsIdempotent is
// nil.
func (r Replayer) Idempotent(c *Call) bool { return r.IsIdempotent != nil && r.IsIdempotent(c) }

// Replay returns nil, because a call can be sent again unchanged.
func (Replayer) Replay(*Call, int64) layer.Replay[*Call] { return nil }

// RetryAfter returns the wait that the server requests by the trailer field
// grpc-retry-pushback-ms (gRFC A6), at most a day. It returns false without this field.
// If the value is not a number of milliseconds, the wait is negative, which forbids a
// retry.
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

// Peek returns r and false. It does not wait for trailers, because a failed unary call
// returns an error, and a stream is not repeated after its header.
func (Replayer) Peek(_ context.Context, r *Reply) (*Reply, bool) { return r, false }

// Drain cancels the stream of r. It does nothing for the reply of a unary call.
func (Replayer) Drain(r *Reply) {
	if r != nil && r.stream != nil {
		r.stream.end(layer.ErrBodyClosedEarly)
	}
}
