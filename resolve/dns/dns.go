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

// Resolver resolves names by DNS. Create it with [New]. It is safe for concurrent use, need not
// be closed, and must not be copied. It keeps no connection between two lookups, and runs
// goroutines only while there are streams.
type Resolver struct {
	options options
	client  client
	hosts   *hostsFile

	flights share.Group[target, *flight] // the repeated lookups of each target that has a stream
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver. It asks the servers in /etc/resolv.conf, unless an option sets
// others. The file is read at each lookup. If it cannot be read, the servers are 127.0.0.1 and ::1.
func New(opts ...Option) *Resolver {
	o := options{dial: new(net.Dialer).DialContext}
	option.Apply(&o, opts)
	return &Resolver{options: o.withDefaults(), client: client{dial: o.dial}, hosts: newHostsFile(o.hosts)}
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends or the
// consumer breaks. The package documentation describes which targets you can use, and the errors.
//
// All streams for a target share its lookups, which start with the first stream and end with the
// last. A later stream yields the last answer immediately. A slow consumer gets only the latest
// answer.
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
			endpoints := []resolve.Endpoint{{ID: resolve.ID{Addr: t.literal}}}
			if yield(resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}, nil) {
				<-ctx.Done()
			}
		default:
			// hinted reports whether this stream has yielded the advice to add a port. Once is enough.
			hinted := false
			// Use starts the flight for the first stream of this target, and leave ends it after the last one.
			f, leave := r.flights.Use(t, func() (*flight, func()) {
				// Only the flight's goroutine uses last: lookups for a target run one after the other.
				var last map[recordSet]answer
				return startFlight(&r.options, func(ctx context.Context, onPartial func(found)) (found, error) {
					l := r.newLookup(t, last, onPartial)
					f, err := l.run(ctx, t, name)
					// If a question fails in the next lookup, its answer in this one is used.
					last = l.answers
					return f, err
				})
			})
			defer leave()
			f.follow(ctx, func(u resolve.Update, err error) bool {
				if !yield(u, err) {
					return false
				}
				// A name without a port that has no SRV records is usually a mistake, which Empty alone
				// would not show.
				if err != nil || u.Kind == resolve.Replace || !t.isPortless() || hinted {
					return true
				}
				hinted = true
				return ctx.Err() == nil && yield(resolve.Update{}, noSRV(name))
			})
		}
	}
}

// newLookup returns a lookup of t with the current configuration. last holds the answers to the
// previous lookup for the same target, which replace those that fail now. onPartial is called with the
// first addresses if the others take long.
func (r *Resolver) newLookup(t target, last map[recordSet]answer, onPartial func(found)) *lookup {
	// Read anew for each lookup, because resolv.conf may have changed.
	conf := r.options.config()
	// ask sends one question to the servers of conf.
	ask := func(ctx context.Context, name string, kind dnsmessage.Type) (answer, error) {
		a, err := r.client.ask(ctx, conf, name, kind)
		// Without its configuration file, the lookup used default servers, which explains why they
		// failed.
		if err != nil && conf.err != nil {
			err = fmt.Errorf("%w (%w)", err, conf.err)
		}
		return a, err
	}
	return &lookup{
		// answers collects this lookup's answers, which the next one gets as last.
		ask: ask, onPartial: onPartial, search: conf.search, families: r.options.families, sequential: conf.sequential,
		counts: r.options.counts, local: r.hosts.lookup(t), last: last, answers: make(map[recordSet]answer),
	}
}
