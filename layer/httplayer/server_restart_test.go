package httplayer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// load is what clients of all kinds make of a proxy.
type load struct {
	addr     string
	clients  sync.WaitGroup
	requests atomic.Int64
	mu       sync.Mutex
	failures []string
}

func (l *load) count(kind string, err error) {
	l.requests.Add(1)
	if err != nil {
		l.mu.Lock()
		l.failures = append(l.failures, kind+": "+err.Error())
		l.mu.Unlock()
	}
}

// run does one thing after another, until the load is stopped.
func (l *load) run(ctx context.Context, kind string, once func() error) {
	l.clients.Go(func() {
		for ctx.Err() == nil {
			l.count(kind, once())
		}
	})
}

// byHTTP1 sends requests without retries. It reconnects only on demand.
func byHTTP1(addr string) (once func() error, hangUp func()) {
	var conn net.Conn
	var in *bufio.Reader
	hangUp = func() {
		if conn != nil {
			conn.Close()
		}
	}
	once = func() (err error) {
		if conn == nil {
			if conn, err = net.Dial("tcp", addr); err != nil {
				return err
			}
			in = bufio.NewReader(conn)
		}
		say(conn, "POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		rsp, err := http.ReadResponse(in, nil)
		if err != nil {
			conn.Close()
			conn = nil
			return err
		}
		if _, err = io.Copy(io.Discard, rsp.Body); err != nil || rsp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", rsp.Status, err)
		}
		if rsp.Close {
			err = conn.Close()
			conn = nil
		}
		return err
	}
	return once, hangUp
}

func byHTTP2(t *testing.T, addr string) func() error {
	c := client(t, true)
	return func() error {
		rsp, err := c.Get("http://" + addr + "/length")
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		if rsp.StatusCode != http.StatusOK {
			return errors.New(rsp.Status)
		}
		return nil
	}
}

func byGRPC(t *testing.T, addr string) (unary, stream func() error) {
	c := grpcClient(t, addr)
	unary = func() error {
		_, err := c.UnaryCall(context.Background(), &pb.SimpleRequest{ResponseSize: 10})
		return err
	}
	stream = func() error {
		s, err := c.FullDuplexCall(context.Background())
		if err != nil {
			return err
		}
		for range 5 {
			if err = s.Send(&pb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
				return err
			}
			if _, err = s.Recv(); err != nil {
				return err
			}
		}
		if err = s.CloseSend(); err != nil {
			return err
		}
		if _, err = s.Recv(); err == nil {
			return errors.New("more than was asked for")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	return unary, stream
}

// TestServerRestarts replaces a proxy under load by its successor several times. No request fails.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	const restarts, each = 5, 300
	plain := endpoint(t, serve(t, http.HandlerFunc(shapes)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	toGRPC := endpoint(t, l.Addr().String(), WithHTTP2())
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		if isGRPC(r) {
			return toGRPC.Call(ctx, r)
		}
		return plain.Call(ctx, r)
	}))

	shared, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer shared.Close()
	next := func() *front { // each has the same socket
		file, err := shared.(*net.TCPListener).File()
		require.NoError(t, err)
		defer file.Close()
		own, err := net.FileListener(file)
		require.NoError(t, err)
		// Longer than any client is idle on a slow machine.
		return servingOn(t, own, h, patience, WithDrainTimeout(patience))
	}
	now := next()
	ctx, stop := context.WithCancel(t.Context())
	clients := &load{addr: shared.Addr().String()}
	for range 3 {
		once, hangUp := byHTTP1(clients.addr)
		clients.run(ctx, "HTTP/1.1", once)
		defer hangUp()
		clients.run(ctx, "HTTP/2", byHTTP2(t, clients.addr))
	}
	for range 2 {
		unary, stream := byGRPC(t, clients.addr)
		clients.run(ctx, "gRPC", unary)
		clients.run(ctx, "gRPC stream", stream)
	}
	some := func() {
		want := clients.requests.Load() + each
		require.Eventually(t, func() bool { return clients.requests.Load() >= want }, patience, time.Millisecond)
	}
	began := time.Now()
	for range restarts {
		some()
		before := now
		now = next()
		before.drain()
		require.NoError(t, before.over(t), "some were broken off")
	}
	some()
	stop()
	clients.clients.Wait()
	t.Logf("%d requests in %v, %d restarts, %d failures",
		clients.requests.Load(), time.Since(began).Round(time.Millisecond), restarts, len(clients.failures))
	assert.Empty(t, clients.failures)
}
