package grpclayer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

const method = "/grpc.testing.TestService/UnaryCall"

// outcome is the result of one attempt in a fake of gRPC.
type outcome struct {
	after time.Duration // or when its context ends
	err   error
	id    string
}

// invoker is a fake of gRPC in which attempt n has outcome n. It sets the
// results of call options.
func invoker(outcomes ...outcome) grpc.UnaryInvoker {
	tries := make(chan outcome, len(outcomes))
	for _, o := range outcomes {
		tries <- o
	}
	return func(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		o := <-tries
		select {
		case <-time.After(o.after):
		case <-ctx.Done():
			o.err = status.FromContextError(ctx.Err()).Err()
		}
		for _, opt := range opts {
			switch opt := opt.(type) {
			case grpc.HeaderCallOption:
				*opt.HeaderAddr = metadata.Pairs("h", o.id)
			case grpc.TrailerCallOption:
				*opt.TrailerAddr = metadata.Pairs("t", o.id)
			case grpc.PeerCallOption:
				opt.PeerAddr.LocalAddr = nil
				opt.PeerAddr.Addr = name0(o.id)
			case grpc.OnFinishCallOption:
				panic("the try is not the call")
			}
		}
		reply.(*pb.SimpleResponse).ServerId = o.id // of discarded replies, too
		return o.err
	}
}

type name0 string

func (name0) Network() string  { return "" }
func (n name0) String() string { return string(n) }

// again repeats a failed call once.
func again(next Service) Service {
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		rsp, err := next.Call(ctx, c)
		if err != nil {
			rsp, err = next.Call(ctx, c)
		}
		return rsp, err
	})
}

// twice makes a second attempt after a second. The first reply wins, and the
// other attempt is canceled.
func twice(next Service) Service {
	type ended struct {
		rsp *Reply
		err error
	}
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		results := make(chan ended, 2)
		send := func() {
			rsp, err := next.Call(ctx, c)
			results <- ended{rsp, err}
		}
		go send()
		select {
		case r := <-results:
			return r.rsp, r.err
		case <-time.After(time.Second):
		}
		go send()
		r := <-results
		return r.rsp, r.err
	})
}

type queries struct {
	header, trailer metadata.MD
	peer            peer.Peer
	finished        []error
	reply           pb.SimpleResponse
}

func (a *queries) call(ctx context.Context, l Layer, gRPC grpc.UnaryInvoker) error {
	return NewClient(l).Unary(ctx, method, new(pb.SimpleRequest), &a.reply, nil, gRPC,
		grpc.StaticMethod(), grpc.Header(&a.header), grpc.Trailer(&a.trailer), grpc.Peer(&a.peer),
		grpc.OnFinish(func(err error) { a.finished = append(a.finished, err) }))
}

func (a *queries) check(t *testing.T, id string, err error) {
	t.Helper()
	assert.Equal(t, []string{id}, a.header.Get("h"))
	assert.Equal(t, []string{id}, a.trailer.Get("t"))
	assert.Equal(t, name0(id), a.peer.Addr)
	assert.Equal(t, []error{err}, a.finished)
}

func TestUnaryOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		layer Layer
	}{
		{"no layers", nil},
		{"limit and timeout", NewStack().Timeout(time.Minute).Limit(1).Layer()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a queries
				require.NoError(t, a.call(t.Context(), tt.layer, invoker(outcome{id: "one"})))
				assert.Equal(t, "one", a.reply.GetServerId())
				a.check(t, "one", nil)

				var b queries
				err := b.call(t.Context(), tt.layer, invoker(outcome{err: status.Error(codes.NotFound, "not here"), id: "two"}))
				require.Equal(t, codes.NotFound, status.Code(err))
				require.EqualError(t, err, "rpc error: code = NotFound desc = not here")
				b.check(t, "two", err)
			})
		})
	}
}

func TestUnaryRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a queries
		down := status.Error(codes.Unavailable, "down")
		require.NoError(t, a.call(t.Context(), again, invoker(outcome{err: down, id: "one"}, outcome{id: "two"})))
		assert.Equal(t, "two", a.reply.GetServerId())
		a.check(t, "two", nil)

		var b queries
		err := b.call(t.Context(), again, invoker(outcome{err: down, id: "one"}, outcome{err: down, id: "two"}))
		assert.Equal(t, down, err)
		b.check(t, "two", down)
	})
}

// Two concurrent attempts write to two messages. The race detector checks this.
func TestUnaryConcurrent(t *testing.T) {
	for _, tt := range []struct {
		name          string
		first, second outcome
		want          string
	}{
		{"the first wins", outcome{after: 2 * time.Second, id: "one"}, outcome{after: time.Hour, id: "two"}, "one"},
		{"the second wins", outcome{after: time.Hour, id: "one"}, outcome{after: time.Second, id: "two"}, "two"},
		{"the first is enough", outcome{after: time.Millisecond, id: "one"}, outcome{}, "one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a queries
				require.NoError(t, a.call(t.Context(), twice, invoker(tt.first, tt.second)))
				assert.Equal(t, tt.want, a.reply.GetServerId())
				a.check(t, tt.want, nil)
				a.reply.ServerId = "the caller's own"
				synctest.Wait()
				assert.Equal(t, "the caller's own", a.reply.GetServerId(), "it is not written any more")
			})
		})
	}
}

// An attempt after the returned one does not overwrite its message.
func TestUnaryAttemptAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		compare := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				rsp, err := next.Call(ctx, c)
				_, _ = next.Call(ctx, c)
				return rsp, err
			})
		}
		var a queries
		require.NoError(t, a.call(t.Context(), compare, invoker(outcome{id: "one"}, outcome{id: "two"})))
		assert.Equal(t, "one", a.reply.GetServerId())
		a.check(t, "one", nil)
	})
}

func TestUnaryReplyOfLayer(t *testing.T) {
	answer := func(rsp *Reply) Layer {
		return func(Service) Service {
			return layer.Func[*Call, *Reply](func(context.Context, *Call) (*Reply, error) { return rsp, nil })
		}
	}
	var a queries
	require.NoError(t, a.call(t.Context(), answer(&Reply{Message: &pb.SimpleResponse{ServerId: "cache"}}), nil))
	assert.Equal(t, "cache", a.reply.GetServerId())

	err := a.call(t.Context(), answer(&Reply{Message: new(pb.Empty)}), nil)
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "returned a *grpc_testing.Empty, want *grpc_testing.SimpleResponse")

	require.Error(t, a.call(t.Context(), answer(nil), nil))
	require.Error(t, a.call(t.Context(), answer(&Reply{}), nil))
}

func TestCallInLayer(t *testing.T) {
	var seen *Call
	see := func(next Service) Service {
		return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
			seen = c
			return next.Call(ctx, c.WithMessage(&pb.SimpleRequest{ResponseSize: 2}))
		})
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "k", "v", "k", "w")
	var sent any
	err := NewClient(see).Unary(ctx, method, &pb.SimpleRequest{ResponseSize: 1}, new(pb.SimpleResponse), nil,
		func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			sent = req
			return nil
		})
	require.NoError(t, err)
	assert.Equal(t, method, seen.Method)
	assert.EqualValues(t, 1, seen.Message.(*pb.SimpleRequest).GetResponseSize())
	assert.EqualValues(t, 2, sent.(*pb.SimpleRequest).GetResponseSize())
	assert.False(t, seen.Streams())
	assert.Equal(t, "v", seen.Get("K"))
	assert.Empty(t, seen.Get("other"))
	assert.Equal(t, []string{"v", "w"}, seen.Header().Get("k"))
}

func TestCallWithoutInterceptor(t *testing.T) {
	_, err := leaf().Call(t.Context(), &Call{Method: method})
	require.ErrorIs(t, err, errNotACall)
	assert.Nil(t, (&Call{}).Header())
	assert.Empty(t, (&Call{}).Get("k"))
}

func TestUnaryLayerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a queries
		err := a.call(t.Context(), NewStack().Limit(0).Layer(), nil)
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "limit: not ready: 0 of 0 in flight")
		assert.Equal(t, []error{err}, a.finished)

		err = a.call(t.Context(), NewStack().Timeout(time.Second).Layer(), invoker(outcome{after: time.Hour}))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.ErrorIs(t, err, layer.ErrTimeout)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = a.call(ctx, nil, nil)
		require.Equal(t, codes.Canceled, status.Code(err))
		require.ErrorIs(t, err, layer.ErrNotReady)
	})
}

// The limit of a layer applies to unary calls and streams together, and a panic
// frees its slot.
func TestClientSharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(NewStack().Limit(1).Layer())
		boom := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { panic("boom") }
		assert.Panics(t, func() { _ = c.Unary(t.Context(), method, nil, new(pb.SimpleResponse), nil, boom) })

		ctx, cancel := context.WithCancel(t.Context())
		_, err := c.Stream(ctx, new(grpc.StreamDesc), nil, method,
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, nil
			})
		require.NoError(t, err)
		err = c.Unary(t.Context(), method, nil, new(pb.SimpleResponse), nil, nil)
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.Contains(t, c.Describe().String(), "in_flight=1 max=1")
		cancel()
		synctest.Wait()
		assert.Contains(t, c.Describe().String(), "in_flight=0 max=1")
	})
}
