package grpclayer

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer: net/http exports none
	"golang.org/x/net/http2/hpack" //nolint:depguard // for the Framer
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// wild is the server side of a connection that sends the frames of a test.
type wild struct {
	net.Conn
	*http2.Framer

	pings int // received, without acknowledgements
}

// head sends a header block for a stream, and ends the stream if it is the
// trailer, too.
func (p *wild) head(id uint32, end bool, fields ...string) {
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fieldBlock(fields...), EndHeaders: true, EndStream: end})
}

// fieldBlock encodes names and values without dynamic table.
func fieldBlock(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // to memory
	}
	return b.Bytes()
}

// serveConns calls serve for each connection, which is closed at the end of the
// test.
func serveConns(t *testing.T, l net.Listener, serve func(net.Conn)) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}

func (p *wild) answer(id uint32) {
	p.head(id, false, ":status", "200", "content-type", "application/grpc")
}

// serveWild calls answer for each request.
func serveWild(t *testing.T, n *layertest.Network, addr string, answer func(p *wild, id uint32)) {
	t.Helper()
	l, err := n.Listen("tcp", addr)
	require.NoError(t, err)
	serveConns(t, l, func(conn net.Conn) { serveWildConn(&wild{Conn: conn, Framer: http2.NewFramer(conn, conn)}, answer) })
}

func serveWildConn(p *wild, answer func(p *wild, id uint32)) {
	if _, err := io.CopyN(io.Discard, p, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	_ = p.WriteSettings()
	for {
		frame, err := p.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = p.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				p.pings++
				_ = p.WritePing(true, frame.Data)
			}
		case *http2.HeadersFrame:
			answer(p, frame.StreamID)
		}
	}
}

// After any response of a server, no call is counted and no slot is held.
func TestResponsesFreeSlots(t *testing.T) {
	empty := make([]byte, frameHeader)
	for name, answer := range map[string]func(p *wild, id uint32){
		"two messages": func(p *wild, id uint32) {
			p.answer(id)
			_ = p.WriteData(id, false, slices.Concat(empty, empty))
			p.head(id, true, "grpc-status", "0")
		},
		"two messages and no end": func(p *wild, id uint32) {
			p.answer(id)
			_ = p.WriteData(id, false, slices.Concat(empty, empty))
		},
		"no message": func(p *wild, id uint32) {
			p.head(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		},
		"no trailer": func(p *wild, id uint32) {
			p.answer(id)
			_ = p.WriteData(id, true, empty)
		},
		"too long a message": func(p *wild, id uint32) {
			p.answer(id)
			_ = p.WriteData(id, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 1})
		},
		"part of a message": func(p *wild, id uint32) {
			p.answer(id)
			_ = p.WriteData(id, false, []byte{0, 0, 0, 0, 9, 1})
			p.Close()
		},
		"two headers": func(p *wild, id uint32) {
			p.answer(id)
			p.answer(id)
		},
		"another code": func(p *wild, id uint32) {
			p.head(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "999")
		},
		"refused":   func(p *wild, id uint32) { _ = p.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"going":     func(p *wild, _ uint32) { _ = p.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"cancelled": func(p *wild, id uint32) { _ = p.WriteRSTStream(id, http2.ErrCodeCancel) },
		"page":      func(p *wild, id uint32) { p.head(id, true, ":status", "503") },
		"silence":   func(*wild, uint32) {},
	} {
		for shape, run := range shapes {
			t.Run(name+" "+shape, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var n layertest.Network
					serveWild(t, &n, a1, answer)
					var seen layer.Describer
					d := layer.NewDrainer()
					cc := dial(t, &n, newSource(replace(a1)),
						WithCallLayer(NewStack().Drain(d).Timeout(time.Second).Retry(RetryPolicy{MaxAttempts: 2}).Layer()),
						WithEndpointLayer(NewEndpointStack().Limit(1).Layer()),
						WithOnBalancer(func(d layer.Describer) { seen = d }))
					for range 3 {
						err := run(t.Context(), pb.NewTestServiceClient(cc))
						require.NotErrorIs(t, err, layer.ErrNotReady)
						synctest.Wait()
					}
					assert.Zero(t, d.InFlight())
					assertFree(t, seen)
				})
			})
		}
	}
}

// assertFree fails if an endpoint of a balancer has a call in flight.
func assertFree(t *testing.T, balancer layer.Describer) {
	t.Helper()
	for _, e := range balancer.Describe().Children {
		assert.EqualValues(t, 0, e.State.Get("in_flight"))
		assert.EqualValues(t, 0, e.Next.State.Get("in_flight"), "the limit of the endpoint")
	}
}

// brokenCodec panics when a message is encoded.
type brokenCodec struct{ encoding.CodecV2 }

func (brokenCodec) Name() string                         { return "proto" }
func (brokenCodec) Marshal(any) (mem.BufferSlice, error) { panic("broken") }

// The same applies after a panic of the client, which does not count against an
// endpoint.
func TestPanicsFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		var seen layer.Describer
		cc := dial(t, &n, newSource(replace(a1)),
			WithEndpointLayer(NewEndpointStack().Breaker(layer.BreakerPolicy{}).Limit(1).Layer()),
			WithOnBalancer(func(d layer.Describer) { seen = d }))
		for range 20 {
			require.PanicsWithValue(t, "broken", func() { _, _ = call(t.Context(), cc, grpc.ForceCodecV2(brokenCodec{})) })
		}
		assert.EqualValues(t, 0, seen.Describe().Children[0].State.Get("in_flight"))
		_, err := call(t.Context(), cc)
		require.NoError(t, err)
	})
}

// The limit of a layer is the error of a stream, as for a unary call.
func TestStreamLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		limit := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Second, func() { cancel(layer.ErrIdleTimeout) })
				return next.Call(ctx, c)
			})
		}
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(limit))
		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = s.Recv()
		require.ErrorIs(t, err, layer.ErrIdleTimeout)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))

		ctx, cancel := context.WithCancel(t.Context())
		s, err = pb.NewTestServiceClient(cc).FullDuplexCall(ctx)
		require.NoError(t, err)
		cancel()
		_, err = s.Recv()
		assert.Equal(t, codes.Canceled, status.Code(err), "he left himself")
	})
}
