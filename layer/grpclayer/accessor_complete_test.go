package grpclayer

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// byteCount is an observer that adds up the reported bytes.
type byteCount struct{ bytes, ends int }

func (b *byteCount) Data(n int) { b.bytes += n }
func (b *byteCount) End(error)  { b.ends++ }

// Complete reports the length of the messages of unary calls and of streams.
func TestAccessorCompleteBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rsp := &outResponse{Payload: &pb.Payload{Body: make([]byte, 1000)}}
		var n layertest.Network
		f := &front{
			unary: func(context.Context) error { return nil },
			both: func(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
				for range 3 {
					if err := both.Send(rsp); err != nil {
						return err
					}
				}
				return nil
			},
		}
		serveFront(t, &n, a1, f)
		var seen byteCount
		begun := 0
		count := layer.Layer[*Call, *Reply](func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				r, err := next.Call(ctx, c)
				if err != nil {
					return nil, err
				}
				require.Equal(t, c.Streams(), GRPC{}.OnDeferredResponse(r, observing{started: func(*Reply) { begun++ }}))
				return GRPC{}.ObserveResponse(ctx, r, &seen), nil
			})
		})
		c := pb.NewTestServiceClient(dial(t, &n, newSource(replace(a1)), WithCallLayer(count)))

		_, err := c.UnaryCall(t.Context(), new(pb.SimpleRequest))
		require.NoError(t, err)
		assert.Equal(t, byteCount{sizeOf(new(pb.SimpleResponse)), 1}, seen)

		seen = byteCount{}
		both, err := c.FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.Zero(t, begun)
		_, err = both.Recv()
		require.Equal(t, 1, begun, "the header has arrived with the first message")
		for err == nil {
			_, err = both.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, byteCount{3 * sizeOf(rsp), 1}, seen)
	})
}

// metadataSink is a sink that also accepts metadata and a status.
type metadataSink struct {
	sink
	statuses int
}

func (*metadataSink) SetHeader(metadata.MD) error  { return nil }
func (*metadataSink) SetTrailer(metadata.MD)       {}
func (*metadataSink) SendHeader(metadata.MD) error { return nil }
func (*metadataSink) Method() string               { return "/a.B/C" }
func (s *metadataSink) WriteStatus(*status.Status) error {
	s.statuses++
	return nil
}

// transport is the part of a metadataSink that gRPC puts into the context.
type transport struct{ *metadataSink }

func (transport) SetTrailer(metadata.MD) error { return nil }

// An observer of a server's stream gets the header and the trailer of the handler.
func TestServerStreamObservedMetadata(t *testing.T) {
	var started, ended *Reply
	s := NewServer(func(next Service) Service {
		return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (r *Reply, err error) {
			GRPC{}.OnResponseStart(ctx, c, observing{started: func(r *Reply) { started = r }})
			ended, err = next.Call(ctx, c)
			return ended, err
		})
	})
	ss := &metadataSink{sink: sink{ctx: t.Context()}}
	err := s.Stream(nil, ss, &grpc.StreamServerInfo{IsServerStream: true}, func(_ any, ss grpc.ServerStream) error {
		require.NoError(t, ss.SetHeader(metadata.Pairs("a", "1")))
		require.Nil(t, started)
		require.NoError(t, ss.SendHeader(metadata.Pairs("b", "2")))
		ss.SetTrailer(metadata.Pairs("c", "3"))
		return nil
	})
	require.NoError(t, err)
	require.NotNil(t, started)
	assert.Equal(t, metadata.Pairs("a", "1", "b", "2"), started.Header)
	assert.Equal(t, metadata.Pairs("a", "1", "b", "2"), ended.Header)
	assert.Equal(t, metadata.Pairs("c", "3"), ended.Trailer)
}

// After a panic of a handler, the time limit of a layer writes no status.
func TestServerStreamLimitAfterPanic(t *testing.T) {
	for _, panics := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ss := new(metadataSink)
			ss.ctx = grpc.NewContextWithServerTransportStream(t.Context(), transport{ss})
			// The layer's limit has not ended when the handler panics.
			limit := func(next Service) Service {
				return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
					ctx, cancel := context.WithTimeout(ctx, time.Second)
					context.AfterFunc(t.Context(), cancel)
					return next.Call(ctx, c)
				})
			}
			serve := func() {
				defer func() { _ = recover() }()
				_ = NewServer(limit).Stream(nil, ss, new(grpc.StreamServerInfo), func(any, grpc.ServerStream) error {
					if panics {
						panic("of the handler")
					}
					time.Sleep(time.Minute)
					return nil
				})
			}
			serve()
			time.Sleep(time.Minute)
			synctest.Wait()
			want := 1
			if panics {
				want = 0
			}
			assert.Equal(t, want, ss.statuses)
		})
	}
}

// observing is a layer.ResponseObserver of functions.
type observing struct {
	started func(*Reply)
	data    func()
}

func (o observing) ResponseStarted(r *Reply) { o.started(r) }

func (o observing) ResponseData(int, []byte) {
	if o.data != nil {
		o.data()
	}
}
