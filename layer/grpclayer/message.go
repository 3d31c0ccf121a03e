package grpclayer

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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
