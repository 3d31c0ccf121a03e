package grpclayer

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
)

// What follows is for package tap, which finds it by itself.

// OnResponseStart has begun called when the handler of a server's stream sends its
// header, and data for each message that it sends. It does nothing for other
// calls.
func (Accessor) OnResponseStart(_ context.Context, c *Call, begun func(*Reply), data func(n int, p []byte)) {
	if s, ok := c.rpc.(*serverStream); ok {
		s.hear = append(s.hear, hearer{begun, data})
	}
}

// OnDeferredResponse has begun called when the header of a client's stream is there. It
// returns false for other calls: their replies are whole.
func (Accessor) OnDeferredResponse(r *Reply, begun func()) bool {
	if r == nil || r.stream == nil {
		return false
	}
	r.stream.begins = append(r.stream.begins, begun)
	return true
}

// TeeRequestBody returns c: the messages of calls are not shown.
func (Accessor) TeeRequestBody(c *Call, _ func(at int64, p []byte)) *Call { return c }

// TeeResponseBody returns r, see TeeRequestBody.
func (Accessor) TeeResponseBody(r *Reply, _ func(at int64, p []byte)) *Reply { return r }

// ErrorResponse returns the reply that an error stands for, with the status that the
// other side gave it: on a client, if the server answered; on a server, if the
// client is still there.
func (Accessor) ErrorResponse(ctx context.Context, c *Call, err error) (*Reply, bool) {
	if c.incoming {
		if c.ctx == nil || c.ctx.Err() != nil {
			return nil, false
		}
		r := &Reply{status: Code(err)}
		if s, ok := c.rpc.(*serverStream); ok {
			r.Header, r.Trailer = s.header, s.trailer
		}
		return r, true
	}
	answered, ok := errors.AsType[*callError](err)
	if !ok || len(answered.header) == 0 && len(answered.trailer) == 0 {
		return nil, false
	}
	code := Code(err)
	if ctx.Err() != nil && (code == codes.Canceled || code == codes.DeadlineExceeded) {
		return nil, false // the caller broke it off
	}
	return &Reply{status: code, Header: answered.header, Trailer: answered.trailer}, true
}

// ending is the trailer of a reply that is over, as HTTP/2 has it: gRPC takes
// the status out.
type ending Reply

func (e *ending) Get(name string) string {
	if values := e.Values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Values returns all values of name; they are not to be changed.
func (e *ending) Values(name string) []string {
	if values := fields(e.Trailer).Values(name); len(values) > 0 || !strings.EqualFold(name, grpcStatus) {
		return values
	}
	if e.status == codes.OK {
		return statusOK()
	}
	return []string{strconv.Itoa(int(e.status))}
}

func (e *ending) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, value := range fields(e.Trailer).All() {
			if !yield(name, value) {
				return
			}
		}
		if len(e.Trailer[grpcStatus]) == 0 {
			yield(grpcStatus, e.Get(grpcStatus))
		}
	}
}

const grpcStatus = "grpc-status"

func statusOK() []string { return []string{"0"} }

// sized is an observer that wants to hear of bytes.
type sized struct{ layer.Observer }

// tell tells o of one message.
func tell(o layer.Observer, m any) {
	if s, ok := o.(sized); ok {
		s.Data(sizeOf(m))
		return
	}
	o.Data(1)
}

// frameHeader is what gRPC puts before each message.
const frameHeader = 5

// sizeOf is how long m is on the wire without compression.
func sizeOf(m any) int {
	if p, ok := m.(proto.Message); ok {
		return frameHeader + proto.Size(p)
	}
	return frameHeader
}

// hearer wants to hear of the response of a server's stream while its handler
// runs.
type hearer struct {
	begun func(*Reply)
	data  func(n int, p []byte)
}

// heardStream tells hearers of what a handler sends.
type heardStream struct {
	grpc.ServerStream
	call *serverStream
}

func (h *heardStream) SetHeader(md metadata.MD) error {
	err := h.ServerStream.SetHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
	}
	return err
}

func (h *heardStream) SendHeader(md metadata.MD) error {
	err := h.ServerStream.SendHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
		h.call.begin()
	}
	return err
}

func (h *heardStream) SetTrailer(md metadata.MD) {
	h.ServerStream.SetTrailer(md)
	h.call.add(&h.call.trailer, md)
}

func (h *heardStream) SendMsg(m any) error {
	h.call.begin()
	err := h.ServerStream.SendMsg(m)
	if err == nil {
		h.call.data(sizeOf(m))
	}
	return err
}

func (s *serverStream) add(to *metadata.MD, md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		*to = metadata.Join(*to, md)
	}
}

// begin and data do nothing once the handler has returned.
func (s *serverStream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.begun {
		return
	}
	s.begun = true
	for _, h := range s.hear {
		h.begun(&Reply{Header: s.header})
	}
}

func (s *serverStream) data(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	for _, h := range s.hear {
		h.data(n, nil)
	}
}

func (s *serverStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}
