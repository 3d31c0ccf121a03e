package tcplayer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// echo listens on the loopback, and writes back the bytes read.
func echo() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l
}

// ask sends a message to addr and returns the response.
func ask(addr, word string) string {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, word)
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// A balancer for TCP sends each connection to one of three servers. One of them
// is down. Its endpoint rejects, and the balancer picks another.
func Example() {
	one, two, three := echo(), echo(), echo()
	defer one.Close()
	defer two.Close()
	servers, _ := static.Endpoints(one.Addr().String(), two.Addr().String(), three.Addr().String())

	ctx, cancel := context.WithCancel(context.Background())
	balancer := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"db": servers}), balance.Config{Target: "db"},
		func(ctx context.Context, t discover.Target) tcplayer.Service {
			return tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
		},
		balance.WithCompletion(layer.AtReturn[net.Conn])) // a connection counts until it is established
	connect := tcplayer.NewStack().Queue(10_000, 3*time.Second).Service(balancer)
	serve := layer.NewStack[net.Conn, tcplayer.ByteCount]().Limit(1000).Service(tcplayer.Forward(connect))

	l, _ := net.Listen("tcp", "127.0.0.1:0")
	served := make(chan error)
	go func() { served <- tcplayer.Serve(ctx, l, serve) }()

	three.Close() // after l, which may otherwise get its port
	answered := 0
	for range 20 {
		if ask(l.Addr().String(), "hello") == "hello" {
			answered++
		}
	}
	fmt.Println(answered, "of 20 answered")
	cancel()
	fmt.Println("served:", <-served)
	// Output:
	// 20 of 20 answered
	// served: <nil>
}

// Long connections count until they are closed, for the balancer and for the
// limit of each server. The latency is the time to connect, because the first
// byte depends on the client.
func ExampleUntilClosed() {
	server := echo()
	defer server.Close()
	servers, _ := static.Endpoints(server.Addr().String())

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	connect := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"db": servers}), balance.Config{Target: "db", Policy: balance.Policy{Sample: balance.SampleHeaders}},
		func(ctx context.Context, t discover.Target) tcplayer.Service {
			return tcplayer.NewStack().Limit(1).Service(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String()))
		},
		balance.WithCompletion(tcplayer.UntilClosed))

	_ = connect.Ready(ctx)
	first, err := connect.Call(ctx, tcplayer.Request{})
	fmt.Println(err)
	_, err = connect.Call(ctx, tcplayer.Request{})
	fmt.Println(errors.Is(err, layer.ErrNotReady))

	first.Close()
	_ = connect.Ready(ctx)
	second, err := connect.Call(ctx, tcplayer.Request{})
	fmt.Println(err)
	second.Close()
	// Output:
	// <nil>
	// true
	// <nil>
}

// An unreachable endpoint rejects with the reason.
func ExampleNewEndpoint() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	down := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
	e := tcplayer.NewEndpoint(ctx, "10.0.0.1:5432", tcplayer.WithDialContext(down))

	_, err := e.Call(ctx, tcplayer.Request{})
	fmt.Println(err)
	_, err = e.Call(ctx, tcplayer.Request{})
	after, _ := layer.RetryAfter(err)
	fmt.Println(after > 0)
	// Output:
	// endpoint 10.0.0.1:5432: not ready: no connection: connection refused
	// true
}
