package grpclayer

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// A handler sends its first message while the layers send the status at the
// time limit. No message precedes the header (RFC 9113, section 8.1).
func TestServerHeaderFirst(t *testing.T) {
	t.Parallel()
	handler := &front{both: func(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
		for i := range 50 { // a large trailer delays the status
			both.SetTrailer(metadata.Pairs("t"+strconv.Itoa(i), "v"))
		}
		<-both.Context().Done()
		return both.Send(&outResponse{Payload: &pb.Payload{Body: []byte("what there is by now")}})
	}}
	srv := grpc.NewServer(NewServer(NewStack().Timeout(2 * time.Millisecond).Layer()).ServerOptions()...)
	pb.RegisterTestServiceServer(srv, handler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		require.NoError(t, <-served)
	}()

	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Minute)))
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	f := http2.NewFramer(conn, conn)
	require.NoError(t, f.WriteSettings())
	for i := range uint32(300) {
		id := 2*i + 1
		require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fullDuplexCall(), EndHeaders: true}))
		requireHeaderFirst(t, f, id)
	}
}

// fullDuplexCall is the header of a request without dynamic table.
func fullDuplexCall() []byte {
	return fieldBlock(":method", "POST", ":scheme", "http", ":path", "/grpc.testing.TestService/FullDuplexCall",
		":authority", "web", "content-type", "application/grpc", "te", "trailers")
}

// requireHeaderFirst reads a stream to its end.
func requireHeaderFirst(t *testing.T, f *http2.Framer, id uint32) {
	t.Helper()
	for headed := false; ; {
		frame, err := f.ReadFrame()
		require.NoError(t, err)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				require.NoError(t, f.WriteSettingsAck())
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				require.NoError(t, f.WritePing(true, frame.Data))
			}
		case *http2.DataFrame:
			require.True(t, headed, "stream %d has a message before its header", id)
		case *http2.HeadersFrame:
			require.Equal(t, id, frame.StreamID)
			if headed = true; frame.StreamEnded() {
				return
			}
		}
	}
}
