package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// errUnfit is returned by the command check if a check failed. It is not printed, because the
// findings have been printed already.
var errUnfit = errors.New("a check failed")

// checkCommand is "tapctl check". It checks each target in steps: the address, TLS, the
// gRPC services of the target, and whether they show a request.
type checkCommand struct {
	traffic time.Duration
}

func (c *checkCommand) flags(f *flag.FlagSet) {
	f.DurationVar(&c.traffic, "wait", 5*time.Second, "`time` to wait for a request")
}

// check reports invalid flags.
func (c *checkCommand) check() error {
	if c.traffic <= 0 {
		return noTime("--wait", c.traffic)
	}
	return nil
}

// run prints the findings of all targets. It fails if one of them is an error, and not only a warning.
func (c *checkCommand) run(ctx context.Context, term terminal) error {
	wrong := 0
	warned := 0
	subjects := make([]subject, 0, len(term.targets))
	// The targets of a command are either addresses or a cluster's pods.
	for _, t := range term.targets {
		subjects = append(subjects, subject{t.name, checks(ctx, t, c.traffic)})
	}
	if term.pods != nil {
		subjects = append(subjects, subject{strings.Join(term.pods.names(), ", "), clusterChecks(ctx, term.pods)})
	}
	for _, s := range subjects {
		fmt.Fprintf(term.out, "%s\n", s.name)
		// Each check runs when the loop asks for its finding, so that the output appears step by step.
		for f := range s.checks {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f.print(term.out)
			switch {
			case f.err == nil:
			case f.warn:
				warned++
			default:
				wrong++
			}
		}
		fmt.Fprintln(term.out)
	}
	switch {
	case wrong > 0:
		fmt.Fprintln(term.out, "Status check results are ×")
		return errUnfit
	case warned > 0:
		fmt.Fprintf(term.out, "Status check results are √ with %s\n", text.Plural(uint64(warned), "warning"))
	default:
		fmt.Fprintln(term.out, "Status check results are √")
	}
	return nil
}

// subject is one thing that the command checks: a target, or a cluster's pods.
type subject struct {
	name   string
	checks func(yield func(finding) bool)
}

// checks runs one target's checks, one after the other, and yields their findings. It stops after
// the first failed check, unless the finding is only a warning. The last check waits until the
// target shows a request. traffic is the maximum duration of this wait.
func checks(ctx context.Context, t target, traffic time.Duration) func(yield func(finding) bool) {
	return func(yield func(finding) bool) {
		// Later checks need the connection.
		if f := listens(ctx, t); !yield(f) || f.err != nil {
			return
		}
		// With a certificate, check first that it is accepted.
		if t.proof != nil {
			if f := proves(ctx, t); !yield(f) || f.err != nil {
				return
			}
		}
		conn, err := dial(t)
		if err != nil {
			yield(finding{what: "the address is valid", err: err, advice: "The target must be host:port"})
			return
		}
		defer conn.Close()
		// The later ones depend on the earlier ones.
		for _, find := range []func() finding{
			func() finding { return serves(ctx, t, conn) },
			func() finding { return hasOwn(ctx, conn) },
			func() finding { return hasRoom(ctx, conn) },
			func() finding { return describes(ctx, conn) },
			func() finding { return sees(ctx, conn, traffic) },
		} {
			if f := find(); !yield(f) || f.err != nil && !f.warn {
				return
			}
		}
	}
}
