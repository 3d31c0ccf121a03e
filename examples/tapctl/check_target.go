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

// listens checks that t accepts TCP connections.
func listens(ctx context.Context, t target) finding {
	f := finding{what: "the address accepts connections"}
	conn, err := connect(ctx, t)
	if err != nil {
		f.err = err
		f.advice = "Start the program, or give its tap port as host:port: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default." +
			" In a cluster: kubectl port-forward POD 4190"
		return f
	}
	// The connection is not needed any more: later checks make their own.
	conn.Close()
	return f
}

func connect(ctx context.Context, t target) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	return d.DialContext(ctx, "tcp", t.addr)
}

// proves checks the TLS handshake with the process. It fails if tapctl rejects the process's
// certificate, or if the process rejects tapctl's.
func proves(ctx context.Context, t target) finding {
	f := finding{what: "its identity is " + t.proof.Expected()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := connect(ctx, t)
	if err == nil {
		defer conn.Close()
		err = t.proof.Probe(ctx, conn)
	}
	// An Error of package trust contains advice. Others are about the connection.
	if refused := (*trust.Error)(nil); errors.As(err, &refused) {
		f.err = errors.New(refused.Reason)
		f.advice = refused.Advice
		return f
	}
	f.err = err
	return f
}

// serves checks that the process serves linkerd's tap over gRPC, as every process with a tap
// does. If a target without TLS does not answer, serves also checks whether the process requires
// TLS.
func serves(ctx context.Context, t target, conn *grpc.ClientConn) finding {
	err := servesLinkerds(ctx, conn)
	f := finding{what: "it serves tap to this client"}.with(err)
	// With TLS, or with an answer of any kind, it is known what the process speaks.
	if code := status.Code(err); t.proof != nil || code != codes.Unavailable && code != codes.DeadlineExceeded {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The connection is a new one, because gRPC has already sent its preface on conn.
	if second, err := connect(ctx, t); err == nil {
		defer second.Close()
		if trust.Speaks(ctx, second) {
			f.err = errors.New("it speaks TLS")
			f.advice = "Use TLS: --cacert FILE --cert FILE --key FILE"
		}
	}
	return f
}

// hasOwn checks that the process also serves gotower's tap. It is only a warning if it does not.
func hasOwn(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it serves gotower's tap as well", warn: true}
	err := servesOwn(ctx, conn)
	// Any other error, and nil, mean that the method exists.
	if status.Code(err) != codes.Unimplemented {
		return f.with(err)
	}
	f.err = errors.New("it has linkerd's tap only")
	f.advice = "tap and top work. Conditions on responses, bodies and explanations do not." +
		" A gotower program calls tap.Server.Register."
	return f
}

// hasRoom checks that the process accepts one more watcher. It opens a stream with a condition
// that matches no request. A process without room ends the stream at once, and the check
// fails.
func hasRoom(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it accepts another watcher"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{Match: match.Any(), Limit: 1})
	if err != nil {
		return f.with(err)
	}
	// A process with room answers with headers and waits. One without room ends
	// the stream at once. linkerd's proxy sends no headers before an event.
	if _, err := stream.Header(); err != nil {
		// Without headers in time, linkerd's proxy is waiting, which means that it has room.
		if status.Code(err) == codes.DeadlineExceeded {
			return f
		}
		return f.with(err)
	}
	// Trailers mean that the stream has already ended. Recv returns the reason.
	if stream.Trailer().Len() > 0 {
		_, err = stream.Recv()
	}
	return f.with(err)
}

// describes checks that the process shows its layers, which tapctl endpoints needs. It is only a warning if it does
// not.
func describes(ctx context.Context, conn *grpc.ClientConn) finding {
	f := finding{what: "it describes its layers, for tapctl endpoints", warn: true}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := tappb.NewTapClient(conn).Describe(ctx, &tappb.DescribeRequest{})
	f = f.with(err)
	// A missing method needs no advice, because the title says what it is for.
	if status.Code(err) == codes.Unimplemented {
		f.advice = ""
	}
	return f
}

// sees checks that the process shows at least one request within the time wait.
func sees(ctx context.Context, conn *grpc.ClientConn, wait time.Duration) finding {
	f := finding{what: "it receives requests", warn: true}
	// A deadline would be sent to the process, which might end the stream first.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(wait, cancel).Stop()
	for _, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Match: match.All(), Limit: 1}) {
		// The first event ends the check. An error before the end of the wait is a failure.
		if err == nil {
			return f
		}
		if ctx.Err() == nil {
			return f.with(err)
		}
	}
	f.err = fmt.Errorf("none in %v", wait)
	f.advice = "Send one. If it is not shown, check that the program's stack has a tap.Layer with the registry of this tap."
	return f
}
