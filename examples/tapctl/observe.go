package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
)

// filter is which requests to watch, and how many.
type filter struct {
	method, path, authority, scheme, to string

	maxRPS  uint
	headers bool
}

// match returns the conditions as one.
func (f filter) match() (*pb.ObserveRequest_Match, error) {
	var all []*pb.ObserveRequest_Match
	if f.method != "" {
		all = append(all, match.Method(f.method))
	}
	if f.path != "" {
		all = append(all, match.PathPrefix(f.path))
	}
	if f.authority != "" {
		all = append(all, match.Authority(f.authority))
	}
	if f.scheme != "" {
		all = append(all, match.Scheme(f.scheme))
	}
	if f.to != "" {
		kind, name, ok := strings.Cut(f.to, "/")
		if !ok || kind == "" || name == "" {
			return nil, fmt.Errorf("--to %q must be KIND/NAME, such as pod/voting-0: a label of the endpoint", f.to)
		}
		all = append(all, match.DestinationLabel(kind, name))
	}
	return match.All(all...), nil
}

// observe watches all targets until ctx ends, or one cannot be watched. each
// is called by one goroutine at a time.
func observe(ctx context.Context, targets []string, f filter, each func(from string, e tap.Event) error) error {
	m, err := f.match()
	if err != nil {
		return err
	}
	req := &pb.ObserveRequest{Match: m, Limit: share(f.maxRPS, len(targets))}
	if f.headers {
		req.Extract = match.Headers()
	}
	// A deadline would travel to the target, which may be the first to notice
	// that it is over, and call it an error.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, stop)()

	var mu sync.Mutex
	g, watching := errgroup.WithContext(watching)
	for _, target := range targets {
		g.Go(func() error {
			return observeOne(watching, target, req, func(e tap.Event) error {
				mu.Lock()
				defer mu.Unlock()
				return each(target, e)
			})
		})
	}
	return g.Wait()
}

// share is how many requests a second each target may show.
func share(maxRPS uint, targets int) uint32 {
	return uint32(min(max(maxRPS/uint(targets), 1), math.MaxUint32))
}

// window is the time in which a target shows its share, as linkerd's tap
// server has it.
const window = time.Second

func observeOne(ctx context.Context, target string, req *pb.ObserveRequest, each func(tap.Event) error) error {
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	defer conn.Close()
	for {
		next := time.NewTimer(window)
		for e, err := range tap.Observe(ctx, conn, req) {
			if err == nil {
				err = each(e)
			}
			if ctx.Err() != nil {
				next.Stop()
				return nil
			}
			if err != nil {
				next.Stop()
				return advise(target, err)
			}
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return nil
		}
	}
}

// advise adds what to do about an error that people meet.
func advise(target string, err error) error {
	var advice string
	switch status.Code(errors.Unwrap(err)) {
	case codes.Unavailable:
		advice = "nothing serves tap there; is the proxy running, and is this its tap port " +
			"(LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default)?"
	case codes.Unimplemented:
		advice = "a gRPC server is there, but no tap; is this the tap port and not the port for requests?"
	case codes.Unauthenticated, codes.PermissionDenied:
		advice = "you may not watch there; in clear, tap answers only on its own machine"
	case codes.ResourceExhausted:
		advice = "too many watch already; end another tap first"
	default:
		return fmt.Errorf("%s: %w", target, err)
	}
	return fmt.Errorf("%s: %s (%w)", target, advice, err)
}
