package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// patience is the timeout of one call or connection to a target.
const patience = 10 * time.Second

// maxMessage is how many bytes a target's message may contain, such as the layers of a process with
// many endpoints.
const maxMessage = 64 << 20

// dial returns a gRPC connection for t. The first call on the connection establishes it.
func dial(t target) (*grpc.ClientConn, error) {
	proof := insecure.NewCredentials()
	if t.proof != nil {
		proof = t.proof
	}
	// A process that starts is found soon, and one that is down is not asked too often.
	delays := backoff.DefaultConfig
	delays.BaseDelay = 100 * time.Millisecond
	delays.MaxDelay = patience
	// passthrough leaves the resolution of the name to the dialer, and does not wait for it.
	conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(proof),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: delays, MinConnectTimeout: patience}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; must be host:port", t.name, err)
	}
	return conn, nil
}

// taps returns a tap.Process for each target, with a connection to the target. closeAll closes the connections. It
// is nil if err is not.
func taps(targets []target) (taps []tap.Process, closeAll func(), err error) {
	var conns []*grpc.ClientConn
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for _, t := range targets {
		conn, err := dial(t)
		if err != nil {
			// The caller gets no closeAll, so the connections so far are closed here.
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, conn)
		taps = append(taps, tap.Process{Name: t.name, Conn: conn})
	}
	return taps, closeAll, nil
}

// source is the set of processes that a command watches. In a cluster, the set changes with the
// pods.
type source interface {
	top.Source

	// size returns the number of processes, or 0 if it changes.
	size() int
}

// fixed is a source of processes that do not change.
type fixed struct{ top.Processes }

func (f fixed) size() int { return len(f.Processes) }

// source returns the processes to watch. In a cluster, it is an error if a resource does not
// exist. Elsewhere it is an error if no process serves a tap with feature (see reachable).
// closeAll closes the connections.
func (t terminal) source(ctx context.Context, feature string, warn func(error)) (s source, closeAll func(), err error) {
	if t.pods != nil {
		return t.pods, func() {}, t.pods.exist(ctx, warn)
	}
	taps, closeAll, err := taps(t.targets)
	if err != nil {
		return nil, nil, err
	}
	if err := reachable(ctx, taps, feature, warn); err != nil {
		// The caller gets no closeAll after an error.
		closeAll()
		return nil, nil, err
	}
	return fixed{taps}, closeAll, nil
}

// reachable asks all processes at the same time whether they serve tap, and calls warn for each
// that does not. It returns an error if none does, or if ctx ends. If feature is not "", it names
// something that only gotower's tap supports, so linkerd's tap will not do.
func reachable(ctx context.Context, taps []tap.Process, feature string, warn func(error)) error {
	errs := make([]error, len(taps))
	var pending sync.WaitGroup
	// Ask concurrently, because a target that does not answer takes the whole timeout.
	for i, p := range taps {
		pending.Go(func() {
			if err := ask(ctx, p.Conn, feature); err != nil {
				errs[i] = advise(fmt.Errorf("%s: %w", p.Name, err))
			}
		})
	}
	pending.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The order of the targets is kept.
	bad := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(bad) == len(taps) {
		return errors.Join(bad...)
	}
	for _, err := range bad {
		warn(err)
	}
	return nil
}

// ask finds out which tap the process serves, and returns nil if that will do. Linkerd's tap will
// do if feature is "". Otherwise the error mentions feature, which only gotower's tap supports.
func ask(ctx context.Context, conn grpc.ClientConnInterface, feature string) error {
	// Any answer but Unimplemented is final: nil, or an error of the connection.
	err := servesOwn(ctx, conn)
	if status.Code(err) != codes.Unimplemented {
		return err
	}
	if err := servesLinkerds(ctx, conn); err != nil || feature == "" {
		return err
	}
	return fmt.Errorf("it has linkerd's tap only, which has no %s."+
		" A gotower program registers both by tap.Server.Register", feature)
}

// servesOwn returns nil if the process serves gotower's tap. It sends a request with an
// invalid value of the field sample, which the tap must reject.
func servesOwn(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A negative share is invalid, so the stream ends at once.
	stream, err := tappb.NewTapClient(conn).Watch(ctx, &tappb.WatchRequest{Sample: -1})
	if err == nil {
		_, err = stream.Recv()
	}
	return expected(err)
}

// servesLinkerds returns nil if the process serves linkerd's tap. It sends a request
// without a limit, which the tap must reject.
func servesLinkerds(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A limit of 0 is invalid, so the stream ends at once.
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{Match: match.All()})
	if err == nil {
		_, err = stream.Recv()
	}
	return expected(err)
}

// expected checks err, an invalid request's result. It returns nil if the code is
// InvalidArgument, because the server then implements the method. If err is nil, it returns a new
// error. Otherwise it returns err.
func expected(err error) error {
	switch {
	case err == nil:
		return errors.New("it accepts an invalid request")
	case status.Code(err) == codes.InvalidArgument:
		return nil
	}
	return err
}
