package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/trust"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

func listens(ctx context.Context, t target) finding {
	f := finding{what: "something listens there"}
	conn, err := connect(ctx, t)
	if err != nil {
		f.err = err
		f.advice = "Start the program, or give its tap port as host:port: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default." +
			" In a cluster: kubectl port-forward POD 4190"
		return f
	}
	conn.Close()
	return f
}

func connect(ctx context.Context, t target) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	return d.DialContext(ctx, "tcp", t.addr)
}

// proves is about TLS, and both ends of it.
func proves(ctx context.Context, t target) finding {
	f := finding{what: "it proves to be " + t.proof.Expected()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := connect(ctx, t)
	if err == nil {
		defer conn.Close()
		err = t.proof.Probe(ctx, conn)
	}
	if refused := (*trust.Error)(nil); errors.As(err, &refused) {
		f.err, f.advice = errors.New(refused.Reason), refused.Advice
		return f
	}
	f.err = err
	return f
}

// serves is about linkerd's tap, which all have.
func serves(ctx context.Context, t target, conn *grpc.ClientConn) finding {
	err := servesLinkerds(ctx, conn)
	f := finding{what: "it serves tap, and you may watch"}.with(err)
	if code := status.Code(err); t.proof != nil || code != codes.Unavailable && code != codes.DeadlineExceeded {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if other, err := connect(ctx, t); err == nil {
		defer other.Close()
		if trust.Speaks(ctx, other) {
			f.err = errors.New("it speaks TLS")
			f.advice = "Say who vouches for it, and who you are: --cacert FILE --cert FILE --key FILE"
		}
	}
	return f
}

func hasOwn(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it counts by itself, and matches responses", warn: true}
	err := servesOwn(ctx, conn)
	if status.Code(err) != codes.Unimplemented {
		return f.with(err)
	}
	f.err = errors.New("it has linkerd's tap alone")
	f.advice = "tap and top work, by each of its events; conditions on responses, bodies and explanations do not." +
		" In a program of gotower call tap.Server.Register."
	return f
}

// hasRoom watches for nothing.
func hasRoom(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it has room for another watcher"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{Match: match.Any(), Limit: 1})
	if err != nil {
		return f.with(err)
	}
	// A process that has room answers with headers and then waits. One that
	// has none ends at once; linkerd's proxy sends no headers until it has an
	// event, and then there is nothing to be heard.
	if _, err := stream.Header(); err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			return f
		}
		return f.with(err)
	}
	if stream.Trailer().Len() > 0 {
		_, err = stream.Recv()
	}
	return f.with(err)
}

func describes(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it describes its layers, for tapctl endpoints", warn: true}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := tappb.NewTapClient(conn).Describe(ctx, &tappb.DescribeRequest{})
	f = f.with(err)
	if status.Code(err) == codes.Unimplemented {
		f.advice = ""
	}
	return f
}

// sees waits for a request.
func sees(ctx context.Context, conn *grpc.ClientConn, wait time.Duration) finding {
	f := finding{what: "requests go through it", warn: true}
	// A deadline would travel, and the process might be the first to notice.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(wait, cancel).Stop()
	for _, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Match: match.All(), Limit: 1}) {
		if err == nil {
			return f
		}
		if ctx.Err() == nil {
			return f.with(err)
		}
	}
	f.err = fmt.Errorf("none in %v", wait)
	f.advice = "Send one through it. If that is not seen: does the program's stack have a tap.Layer, with the registry of this tap?"
	return f
}
