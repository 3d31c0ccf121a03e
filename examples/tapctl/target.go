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

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// patience is the timeout of a target.
const patience = 3 * time.Second

// dial returns a connection to t. It connects at the first call.
func dial(t target) (*grpc.ClientConn, error) {
	proof := insecure.NewCredentials()
	if t.proof != nil {
		proof = t.proof
	}
	again := backoff.DefaultConfig
	again.BaseDelay, again.MaxDelay = 100*time.Millisecond, patience
	conn, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(proof),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: patience}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; must be host:port", t.name, err)
	}
	return conn, nil
}

// processes returns the targets as processes. closeAll closes their connections.
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

// reachable checks whether the processes serve tap. It calls warn for each process that
// does not, and returns an error if no process does or ctx ends. own names the
// requested features that linkerd's tap lacks.
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

// ask returns an error unless a process serves gotower's tap or linkerd's.
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

// servesOwn calls gotower's tap with an invalid sample, which the tap rejects.
func servesOwn(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := tappb.NewTapClient(conn).Watch(ctx, &tappb.WatchRequest{Sample: -1})
	if err == nil {
		_, err = stream.Recv()
	}
	return expected(err)
}

// servesLinkerds calls linkerd's tap without a limit, which the tap rejects.
func servesLinkerds(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{Match: match.All()})
	if err == nil {
		_, err = stream.Recv()
	}
	return expected(err)
}

// expected returns nil if err is the rejection of an invalid request, because the server
// serves the method then.
func expected(err error) error {
	switch {
	case err == nil:
		return errors.New("it accepts an invalid request")
	case status.Code(err) == codes.InvalidArgument:
		return nil
	}
	return err
}
