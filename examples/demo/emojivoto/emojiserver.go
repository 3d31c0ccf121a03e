package emojivoto

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// EmojiServer is one replica of the emoji service, which lists and finds emoji. It is safe
// for concurrent use.
type EmojiServer struct {
	replica

	// methods are the service's methods, list is the response to ListAll, and unicode is the emoji by its shortcode.
	methods []grpc.MethodDesc
	list    *structpb.ListValue
	unicode map[string]string
}

// NewEmojiServer returns a replica of the emoji service. For each request it calls delay,
// and waits for the returned duration. A nil delay means no wait. delay must be safe for
// concurrent use.
func NewEmojiServer(delay func() time.Duration) *EmojiServer {
	s := &EmojiServer{replica: newReplica(delay), list: &structpb.ListValue{}, unicode: make(map[string]string)}
	for _, e := range Catalogue() {
		// The responses are always the same, so they are made once.
		s.unicode[e.Shortcode] = e.Unicode
		s.list.Values = append(s.list.Values, object(map[string]*structpb.Value{
			"shortcode": structpb.NewStringValue(e.Shortcode),
			"unicode":   structpb.NewStringValue(e.Unicode),
		}))
	}
	s.methods = []grpc.MethodDesc{
		unary(&s.replica, EmojiService, "ListAll", newEmpty, s.listAll),
		unary(&s.replica, EmojiService, "FindByShortcode", newString, s.findByShortcode),
	}
	return s
}

// Register registers the emoji service with a gRPC server.
func (s *EmojiServer) Register(r grpc.ServiceRegistrar) { register(r, EmojiService, s.methods) }

// listAll is the method ListAll, which returns all emoji.
func (s *EmojiServer) listAll(context.Context, *emptypb.Empty) (*structpb.ListValue, error) {
	return s.list, nil
}

// findByShortcode is the method FindByShortcode, which returns the emoji with the shortcode.
func (s *EmojiServer) findByShortcode(_ context.Context, shortcode *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	glyph, ok := s.unicode[shortcode.GetValue()]
	// The web front responds to this code with 404.
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no emoji %q", shortcode.GetValue())
	}
	return wrapperspb.String(glyph), nil
}

// newEmpty returns an empty message, as unary needs it.
func newEmpty() *emptypb.Empty { return &emptypb.Empty{} }

// newString returns an empty message for a text, as unary needs it.
func newString() *wrapperspb.StringValue { return &wrapperspb.StringValue{} }

// object returns a JSON object with these fields.
func object(fields map[string]*structpb.Value) *structpb.Value {
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}
