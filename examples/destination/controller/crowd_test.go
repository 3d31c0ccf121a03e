package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// until opens streams for a name until its endpoints have a label, and returns the
// endpoints.
func until(ctx context.Context, client pb.DestinationClient, label string) (map[string]string, error) {
	for {
		stream, err := client.Get(ctx, &pb.GetDestination{Path: web})
		if err != nil {
			return nil, err
		}
		f := &follower{set: map[string]string{}}
		for {
			u, err := stream.Recv()
			if status.Code(err) == codes.ResourceExhausted {
				break
			} else if err != nil {
				return nil, err
			}
			f.apply(panics{}, u)
			if _, last := u.GetAdd().GetMetricLabels()[label]; last {
				return f.set, nil
			}
		}
	}
}

// panics fails a check outside of the test's goroutine.
type panics struct{}

func (panics) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panics) FailNow()                          {}

// Many streams are opened and canceled while the state changes. At the end all have the
// same state.
func TestManyStreamsConverge(t *testing.T) {
	c := New(nil)
	client := served(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	const followers, changes = 16, 200
	known := make([]map[string]string, followers)
	var crowd errgroup.Group
	join := func(i int) {
		crowd.Go(func() (err error) {
			known[i], err = until(ctx, client, "last")
			return err
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	state := func(labels map[string]string) Config {
		d := Destination{Labels: labels}
		for i := range 1 + random.IntN(20) {
			d.Endpoints = append(d.Endpoints, Endpoint{Addr: addr(fmt.Sprintf("10.0.0.%d:80", i+1)), Weight: 1 + random.Uint32N(3)})
		}
		return one(web, d)
	}
	for i := range changes {
		if i%(changes/followers) == 0 && i/(changes/followers) < followers {
			join(i / (changes / followers))
		}
		if i%10 == 0 { // a stream that is canceled at once
			brief, leave := context.WithCancel(ctx)
			_, err := client.GetProfile(brief, &pb.GetDestination{Path: web})
			require.NoError(t, err)
			leave()
		}
		set(t, c, state(nil))
	}
	set(t, c, Config{})
	final := state(map[string]string{"last": "yes"})
	set(t, c, final)
	require.NoError(t, crowd.Wait())

	want := map[string]string{}
	for _, msg := range compiled(t, final.Destinations[web]).byAddr {
		want[msg.GetAddr().String()] = describe(map[string]string{"last": "yes"}, msg)
	}
	for i := range followers {
		require.Equal(t, want, known[i], "follower %d", i)
	}
}

// A controller is replaced by another with a different state at the same address. A client
// reconnects and receives the new state. The address is in memory, because a port that was
// closed may be in use.
func TestRestartWithAnotherState(t *testing.T) {
	var at atomic.Pointer[bufconn.Listener]
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return at.Load().DialContext(ctx) }
	conn, err := grpc.NewClient("passthrough:///controller",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	require.NoError(t, err)
	client := pb.NewDestinationClient(conn)
	patient, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()

	for i, want := range []*pb.Update{addition(nil, plain(1, 80)), addition(nil, plain(2, 80)), none(false)} {
		lis := bufconn.Listen(64 << 10)
		at.Store(lis)
		c := New(nil)
		if i < 2 {
			set(t, c, one(web, Destination{Endpoints: endpointsAt(fmt.Sprintf("10.0.0.%d:80", i+1))}))
		} else {
			set(t, c, Config{})
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Serve(ctx, lis) }()
		// The client's own back-off may not be over yet: it waits.
		stream, err := client.Get(patient, &pb.GetDestination{Path: web}, grpc.WaitForReady(true))
		require.NoError(t, err)
		same(t, want, recv(t, stream))

		cancel()
		require.NoError(t, <-ended)
		st, n := ends(t, stream)
		require.Equal(t, codes.Unavailable, st.Code(), "not a status that is final to clients")
		require.Zero(t, n)
	}
	require.NoError(t, conn.Close())
}
