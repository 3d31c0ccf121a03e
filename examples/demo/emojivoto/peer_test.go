package emojivoto

import (
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// dialled serves what reg registers on loopback, and returns a connection to it.
func dialled(t *testing.T, reg func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	reg(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.GracefulStop()
		require.NoError(t, <-ended)
	})
	return conn
}

// app is the whole application on loopback: one replica of each service.
type app struct {
	tally  *Tally
	emoji  *EmojiServer
	voting *VotingServer
	front  *httptest.Server
}

func newApp(t *testing.T) *app {
	t.Helper()
	a := &app{tally: NewTally()}
	a.emoji, a.voting = NewEmojiServer(nil), NewVotingServer(a.tally, nil)
	a.front = httptest.NewServer(NewWeb(dialled(t, a.emoji.Register), dialled(t, a.voting.Register)))
	t.Cleanup(a.front.Close)
	return a
}

func always(d time.Duration) func() time.Duration {
	return func() time.Duration { return d }
}
