package dns

import (
	"context"
	"fmt"
	"iter"
	"net"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

// Resolver resolves names by DNS. Create it with [New]. It is safe for concurrent use,
// need not be closed, and must not be copied. It keeps no connection between two
// lookups, and has goroutines only while it has streams.
type Resolver struct {
	options options
	client  client
	hosts   *hostsFile

	mu      sync.Mutex
	flights map[target]*flight
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that asks the servers in /etc/resolv.conf, unless an option sets
// others. The file is read at each lookup. If it cannot be read, each stream yields the error.
func New(opts ...Option) *Resolver {
	o := options{dial: new(net.Dialer).DialContext}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	return &Resolver{
		options: o.withDefaults(), client: client{dial: o.dial}, hosts: newHostsFile(o.hosts),
		flights: make(map[target]*flight),
	}
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
		t, err := parseTarget(name, r.options.namedPorts)
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
			f := r.enter(t, name)
			defer r.leave(t, f)
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

// enter adds a stream to the lookups of t. It starts the lookups for the first stream.
func (r *Resolver) enter(t target, name string) *flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.flights[t]
	if f == nil {
		// The lookups do not use this stream's context, because all streams share them.
		ctx, cancel := context.WithCancel(context.Background())
		f = newFlight(cancel)
		r.flights[t] = f
		go f.run(ctx, &r.options, func(ctx context.Context) (found, error) { return r.look(ctx, t, name) })
	}
	f.streams++
	return f
}

// leave removes a stream. After the last stream it ends the lookups and waits for their end.
func (r *Resolver) leave(t target, f *flight) {
	r.mu.Lock()
	f.streams--
	last := f.streams == 0
	if last {
		delete(r.flights, t)
	}
	r.mu.Unlock()
	if last {
		f.cancel()
		<-f.ended
	}
}

// look performs one lookup of t.
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
