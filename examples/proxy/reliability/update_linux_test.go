package reliability

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	pbnet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The CPU time for a single update that adds or removes one of 10 000 endpoints. The proxy's share
// is the difference to a program that only receives the updates.
func TestSingleUpdate(t *testing.T) {
	whole(t)
	n, rounds := size(100, 10_000), size(1, 30)
	port := serveLoopback(t, func(http.ResponseWriter, *http.Request) {})
	c := &updater{first: endpointsAt(port, 1, n+1), streams: make(chan chan *pb.Update)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	pb.RegisterDestinationServer(s, c)
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Stop()
		served.Wait()
	})
	p := startProxy(t, l.Addr().String(), "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT=10m")
	client := through(t, p.addr, false)
	require.NoError(t, get(t.Context(), client, "http://web.test/"))
	p.knows(t, n)
	processes, streams := []*process{p}, []chan *pb.Update{<-c.streams}
	processes, streams = append(processes, startReceiver(t, l.Addr().String())), append(streams, <-c.streams)
	p.steady(t)

	one := endpointsAt(port, n+1, n+2)
	none := &pb.Update{Update: &pb.Update_Remove{Remove: &pb.AddrSet{Addrs: []*pbnet.TcpAddress{one.GetAdd().GetAddrs()[0].GetAddr()}}}}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	took := make([][]time.Duration, len(processes))
	for range rounds {
		for i, p := range processes {
			const pairs = 20
			start := p.cpu(t)
			for range pairs {
				for _, u := range []*pb.Update{one, none} {
					<-tick.C
					streams[i] <- u
				}
			}
			took[i] = append(took[i], (p.cpu(t)-start)/(2*pairs))
		}
	}
	p.knows(t, n)
	median := func(took []time.Duration) time.Duration { return slices.Sorted(slices.Values(took))[len(took)/2] }
	whole, least := median(took[0]), median(took[1])
	t.Logf("single update with %d endpoints: %v of CPU, gRPC alone %v", n, whole, least)
	if full {
		assert.LessOrEqual(t, whole, 2*least)
	}
}

// endpointsAt returns the update that adds the loopback addresses number first to end-1.
func endpointsAt(port, first, end int) *pb.Update {
	set := new(pb.WeightedAddrSet)
	for i := first; i < end; i++ {
		ip := &pbnet.IPAddress{Ip: &pbnet.IPAddress_Ipv4{Ipv4: 127<<24 + 1<<16 + uint32(i)}}
		set.Addrs = append(set.Addrs, &pb.WeightedAddr{Weight: 1, Addr: &pbnet.TcpAddress{Ip: ip, Port: uint32(port)}})
	}
	return &pb.Update{Update: &pb.Update_Add{Add: set}}
}

// updater is a controller that sends the update first on each stream, followed by those that the
// test sends to the stream's channel.
type updater struct {
	pb.UnimplementedDestinationServer
	first   *pb.Update
	streams chan chan *pb.Update // receives each new stream's channel
}

func (c *updater) Get(_ *pb.GetDestination, stream grpc.ServerStreamingServer[pb.Update]) error {
	if err := stream.Send(c.first); err != nil {
		return err
	}
	updates := make(chan *pb.Update)
	select {
	case c.streams <- updates:
	case <-stream.Context().Done():
		return nil
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case u := <-updates:
			if err := stream.Send(u); err != nil {
				return err
			}
		}
	}
}

func (*updater) GetProfile(_ *pb.GetDestination, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
	if err := stream.Send(&pb.DestinationProfile{FullyQualifiedName: "web.test"}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// receiveFrom is the environment variable with TestAsReceiver's controller.
const receiveFrom = "GOTOWER_TEST_RECEIVE_FROM"

// startReceiver starts a process that receives webName's endpoints and ignores them.
func startReceiver(t *testing.T, controller string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAsReceiver$", "-test.timeout=15m")
	cmd.Env = append(os.Environ(), receiveFrom+"="+controller)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.True(t, bufio.NewScanner(out).Scan(), "the receiver has ended")
	return &process{cmd: cmd}
}

// TestAsReceiver is the process that startReceiver starts. It tests nothing by itself.
func TestAsReceiver(t *testing.T) {
	addr, ok := os.LookupEnv(receiveFrom)
	if !ok {
		t.Skip("it is for another test")
	}
	const window = 1 << 20 // like the proxy, because gRPC otherwise sends a PING for each message
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	require.NoError(t, err)
	updates, err := pb.NewDestinationClient(conn).Get(t.Context(), &pb.GetDestination{Path: webName})
	require.NoError(t, err)
	for n := 0; ; n++ {
		_, err := updates.Recv()
		require.NoError(t, err)
		if n == 0 {
			fmt.Println("received")
		}
	}
}
