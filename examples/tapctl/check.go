package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// errUnfit is what check ends with: what is wrong stands above it.
var errUnfit = errors.New("not everything is as it should be")

// checkCommand looks at each target, in the order in which things go wrong.
type checkCommand struct {
	traffic time.Duration
}

func (c *checkCommand) flags(f *flag.FlagSet) {
	f.DurationVar(&c.traffic, "wait", 5*time.Second, "`time` to wait for a request")
}

func (c *checkCommand) check() error {
	if c.traffic <= 0 {
		return fmt.Errorf("--wait %v: it must be more than nothing", c.traffic)
	}
	return nil
}

func (c *checkCommand) run(ctx context.Context, on terminal) error {
	wrong, warned := 0, 0
	for _, target := range on.targets {
		fmt.Fprintf(on.out, "%s\n", target)
		for f := range checks(ctx, target, c.traffic) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f.print(on.out)
			switch {
			case f.err == nil:
			case f.warn:
				warned++
			default:
				wrong++
			}
		}
		fmt.Fprintln(on.out)
	}
	switch {
	case wrong > 0:
		fmt.Fprintln(on.out, "Status check results are ×")
		return errUnfit
	case warned > 0:
		fmt.Fprintf(on.out, "Status check results are √ with %s\n", text.Plural(uint64(warned), "warning"))
	default:
		fmt.Fprintln(on.out, "Status check results are √")
	}
	return nil
}

// finding is what one check came to.
type finding struct {
	what   string
	err    error  // nil: it is as it should be
	advice string // what to do about err
	warn   bool   // one can do without it
}

func (f finding) print(out io.Writer) {
	switch {
	case f.err == nil:
		fmt.Fprintf(out, "√ %s\n", f.what)
		return
	case f.warn:
		fmt.Fprintf(out, "‼ %s\n", f.what)
	default:
		fmt.Fprintf(out, "× %s\n", f.what)
	}
	fmt.Fprintf(out, "    %s\n", text.Clean(f.err.Error()))
	if f.advice != "" {
		fmt.Fprintf(out, "    %s\n", f.advice)
	}
}

// checks yields the findings of one target. It ends with the first thing that
// the rest cannot do without.
func checks(ctx context.Context, target string, traffic time.Duration) func(yield func(finding) bool) {
	return func(yield func(finding) bool) {
		if f := listens(ctx, target); !yield(f) || f.err != nil {
			return
		}
		conn, err := dial(target)
		if err != nil {
			yield(finding{what: "the address can be used", err: err, advice: "write host:port"})
			return
		}
		defer conn.Close()
		if f := serves(ctx, conn); !yield(f) || f.err != nil {
			return
		}
		if !yield(hasOwn(ctx, conn)) {
			return
		}
		if f := hasRoom(ctx, conn); !yield(f) || f.err != nil {
			return
		}
		if !yield(describes(ctx, conn)) {
			return
		}
		yield(sees(ctx, conn, traffic))
	}
}

func listens(ctx context.Context, target string) finding {
	f := finding{what: "something listens there"}
	d := net.Dialer{Timeout: patience}
	conn, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		f.err = err
		f.advice = "Start the program, or give its tap port as host:port: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default." +
			" In a cluster: kubectl port-forward POD 4190"
		return f
	}
	conn.Close()
	return f
}

func (f finding) with(err error) finding {
	if err != nil {
		f.err, f.advice = errors.New(reason(status.Convert(err).Message())), advice(status.Code(err), err.Error())
	}
	return f
}

// serves is about linkerd's tap, which all have.
func serves(ctx context.Context, conn *grpc.ClientConn) finding {
	return finding{what: "it serves tap, and you may watch"}.with(servesLinkerds(ctx, conn))
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
