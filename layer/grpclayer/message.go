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

// errNoReply is the error of a call for which a layer returned nil and no error.
var errNoReply = errors.New("grpclayer: a layer returned no reply")

// newMessage returns a new, empty message of m's type. It does not read m's content, because
// another attempt may be decoding into it.
func newMessage(m any) any {
	// A message without generated code, such as dynamicpb's, knows its own type.
	if p, ok := m.(protoreflect.Message); ok {
		return p.New().Interface()
	}
	if t := reflect.TypeOf(m); t != nil && t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface()
	}
	return m
}

// assign copies one message's content, from, into another one, the argument to. It returns an
// error if their types differ.
func assign(to, from any) error {
	// Both must be pointers of the same type, and not nil.
	dst, src := reflect.ValueOf(to), reflect.ValueOf(from)
	if !dst.IsValid() || !src.IsValid() || dst.Type() != src.Type() || dst.Kind() != reflect.Pointer || dst.IsNil() || src.IsNil() {
		return status.Error(codes.Internal, fmt.Sprintf("grpclayer: a layer returned a %T, want %T", from, to))
	}
	// A message that is not of protobuf can only be copied as a whole.
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

// Idempotent returns the result of IsIdempotent, or false if the field IsIdempotent is
// nil.
func (g GRPC) Idempotent(c *Call) bool { return g.IsIdempotent != nil && g.IsIdempotent(c) }

// Replay returns nil, because a call can be sent again unchanged.
func (GRPC) Replay(*Call, int64) layer.Replay[*Call] { return nil }

// RetryAfter returns the wait that the server requests by the trailer field
// grpc-retry-pushback-ms (gRFC A6), at most a day. It returns false without this field.
// If the field has several values, or one that is not a number of milliseconds below 2^31,
// the wait is negative, which forbids a retry.
func (GRPC) RetryAfter(_ *Reply, err error) (time.Duration, bool) {
	call, ok := errors.AsType[*callError](err)
	if !ok || len(call.pushback) == 0 {
		return 0, false
	}
	// Two values contradict each other, so that no retry is the safe choice.
	if len(call.pushback) > 1 {
		return -1, true
	}
	// In gRFC A6, a value that is no int32, or a negative one, forbids a retry.
	ms, err := strconv.ParseUint(call.pushback[0], 10, 31)
	if err != nil {
		return -1, true
	}
	return min(time.Duration(ms)*time.Millisecond, maxPushback), true
}

// Peek returns r and false. It does not wait for trailers, because a failed unary call
// returns an error, and a stream is not repeated after its header.
func (GRPC) Peek(_ context.Context, r *Reply) (*Reply, bool) { return r, false }

// Drain cancels the stream of r. It does nothing for a unary call's reply.
func (GRPC) Drain(r *Reply) {
	if r != nil && r.stream != nil {
		r.stream.end(layer.ErrBodyClosedEarly)
	}
}
