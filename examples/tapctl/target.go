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
const patience = 3 * time.Second

// maxMessage is the maximum size in bytes of a message of a target, such as the layers of a process
// with many endpoints.
const maxMessage = 64 << 20

// dial returns a gRPC connection for t. The first call on the connection establishes it.
func dial(t target) (*grpc.ClientConn, error) {
	proof := insecure.NewCredentials()
	if t.proof != nil {
		proof = t.proof
	}
	again := backoff.DefaultConfig
	again.BaseDelay, again.MaxDelay = 100*time.Millisecond, patience
	conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(proof),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: patience}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; must be host:port", t.name, err)
	}
	return conn, nil
}

// processes returns a tap.Process for each target, with a connection to the target.
// closeAll closes the connections.
func processes(targets []target) (all []tap.Process, closeAll func(), err error) {
	var conns []*grpc.ClientConn
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for _, t := range targets {
		conn, err := dial(t)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, conn)
		all = append(all, tap.Process{Name: t.name, Conn: conn})
	}
	return all, closeAll, nil
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

// source returns the processes to watch. In a cluster, it returns an error if a resource does not
// exist. Elsewhere it returns an error if no process serves the tap that own requires (see
// reachable). closeAll closes the connections.
func (t terminal) source(ctx context.Context, own string, warn func(error)) (s source, closeAll func(), err error) {
	if t.pods != nil {
		return t.pods, func() {}, t.pods.exist(ctx, warn)
	}
	all, closeAll, err := processes(t.targets)
	if err != nil {
		return nil, nil, err
	}
	if err := reachable(ctx, all, own, warn); err != nil {
		closeAll()
		return nil, nil, err
	}
	return fixed{all}, closeAll, nil
}

// reachable checks concurrently whether the processes serve tap. It calls warn for each process
// that does not serve tap. It returns an error if no process serves tap, or if ctx ends. If own is
// not "", it names a feature that only gotower's tap has, and linkerd's tap does not suffice.
func reachable(ctx context.Context, all []tap.Process, own string, warn func(error)) error {
	errs := make([]error, len(all))
	var asked sync.WaitGroup
	for i, p := range all {
		asked.Go(func() {
			if err := ask(ctx, p.Conn, own); err != nil {
				errs[i] = advise(fmt.Errorf("%s: %w", p.Name, err))
			}
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	bad := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(bad) == len(all) {
		return errors.Join(bad...)
	}
	for _, err := range bad {
		warn(err)
	}
	return nil
}

// ask asks the process whether it serves gotower's tap or linkerd's tap, and returns nil if that
// suffices. Linkerd's tap suffices if own is "". Otherwise own names a feature that only gotower's
// tap has. If the process serves only linkerd's tap, the error contains this name.
func ask(ctx context.Context, conn grpc.ClientConnInterface, own string) error {
	err := servesOwn(ctx, conn)
	if status.Code(err) != codes.Unimplemented {
		return err
	}
	if err := servesLinkerds(ctx, conn); err != nil || own == "" {
		return err
	}
	return fmt.Errorf("it has linkerd's tap only, which has no %s."+
		" A gotower program registers both by tap.Server.Register", own)
}

// servesOwn returns nil if the process serves gotower's tap. It sends a request with an
// invalid value of the field sample, which the tap must reject.
func servesOwn(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
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
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{Match: match.All()})
	if err == nil {
		_, err = stream.Recv()
	}
	return expected(err)
}

// expected checks err, the result of an invalid request. It returns nil if the code is
// InvalidArgument, because the server then implements the method. If err is nil, it returns a
// new error. Otherwise it returns err.
func expected(err error) error {
	switch {
	case err == nil:
		return errors.New("it accepts an invalid request")
	case status.Code(err) == codes.InvalidArgument:
		return nil
	}
	return err
}
