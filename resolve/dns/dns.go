package dns

import (
	"context"
	"fmt"
	"iter"
	"net"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/resolve"
)

// Resolver resolves names by DNS. Create it with [New]. It is safe for concurrent use,
// need not be closed, and must not be copied. It keeps no connection between two
// lookups, and has goroutines only while it has streams.
type Resolver struct {
	options options
	client  client
	hosts   *hostsFile

	flights share.Group[target, *flight] // the repeated lookups of each target that has a stream
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver. It asks the servers in /etc/resolv.conf, unless an option sets
// others. The file is read at each lookup. If the file cannot be read, each stream yields
// the error.
func New(opts ...Option) *Resolver {
	o := options{dial: new(net.Dialer).DialContext}
	option.Apply(&o, opts)
	return &Resolver{options: o.withDefaults(), client: client{dial: o.dial}, hosts: newHostsFile(o.hosts)}
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends or the
// consumer breaks. The package documentation describes the forms of target and the errors.
//
// All streams of a target share its lookups, which start with the first stream and end
// with the last. A later stream yields the last answer immediately. A slow consumer
// gets only the latest answer.
func (r *Resolver) Resolve(ctx context.Context, name string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		t, err := parseTarget(name)
		switch {
		case err != nil:
			yield(resolve.Update{}, err)
		case t.literal.IsValid():
			only := []resolve.Endpoint{{ID: resolve.ID{Addr: t.literal}}}
			if yield(resolve.Update{Kind: resolve.Replace, Endpoints: only}, nil) {
				<-ctx.Done()
			}
		default:
			hinted := false
			f, leave := r.flights.Use(t, func() (*flight, func()) {
				return startFlight(&r.options, func(ctx context.Context) (found, error) { return r.look(ctx, t, name) })
			})
			defer leave()
			f.follow(ctx, func(u resolve.Update, err error) bool {
				if !yield(u, err) {
					return false
				}
				if err != nil || u.Kind == resolve.Replace || !t.isPortless() || hinted {
					return true
				}
				hinted = true
				return ctx.Err() == nil && yield(resolve.Update{}, noSRV(name))
			})
		}
	}
}

// look performs one lookup of t. name is the target as the caller wrote it, for errors.
func (r *Resolver) look(ctx context.Context, t target, name string) (found, error) {
	local := r.hosts.lookup(t.host)
	conf, err := r.options.config()
	if err != nil && (local == nil || t.srv != "") {
		return found{}, err
	}
	l := lookup{local: local, search: conf.search, families: r.options.families, counts: r.options.counts}
	l.ask = func(ctx context.Context, name string, kind dnsmessage.Type) (answer, error) {
		return r.client.ask(ctx, conf, name, kind)
	}
	f, err := l.target(ctx, t)
	if err != nil {
		return found{}, fmt.Errorf("dns: resolve %q: %w", name, err)
	}
	return f, nil
}
