package dns

import (
	"context"

	"github.com/go-kit/kit/metrics"
)

// Measured counts lookups in c: those of SRV records, and those of the addresses
// of a host, which is one for both families. A lookup is all the questions that it
// takes; one that is begun and not wanted any more does not count, and neither
// do targets that are addresses, nor a lookup that cannot begin, as when resolv.conf
// cannot be read. c needs two labels, which are bound here:
//
//	record_type  SRV, A/AAAA
//	result       ok         it found endpoints
//	             not_found  there are none, or it failed
//
// A nil c panics.
func Measured(c metrics.Counter) Option {
	if c == nil {
		panic("dns: Measured: the counter is nil")
	}
	of := func(kind string) tally {
		return tally{
			found: c.With("record_type", kind, "result", "ok"),
			none:  c.With("record_type", kind, "result", "not_found"),
		}
	}
	counted := counts{services: of("SRV"), hosts: of("A/AAAA")}
	return option(func(o *options) { o.counts = counted })
}

// counts are the lookups of each kind.
type counts struct{ services, hosts tally }

// tally counts lookups of one kind. The zero tally does not.
type tally struct{ found, none metrics.Counter }

func (t tally) count(ctx context.Context, f found, err error) {
	switch {
	case t.found == nil, err != nil && ctx.Err() != nil:
	case err == nil && len(f.endpoints) > 0:
		t.found.Add(1)
	default:
		t.none.Add(1)
	}
}
