package dns

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/resolve"
)

// lookup is one lookup of a target: all the questions it takes.
type lookup struct {
	ask      func(ctx context.Context, name string, kind dnsmessage.Type) (answer, error)
	search   search
	families []dnsmessage.Type
	counts   counts
	local    *hosts // of the target's host, if no server is to be asked for them

	// had is the families that each host of the SRV records had addresses of, by
	// folded name, when this target was last looked up.
	had map[string][]dnsmessage.Type
}

// found is what a lookup found: Replace, Empty or DoesNotExist.
type found struct {
	kind      resolve.Kind
	endpoints []resolve.Endpoint // by address
	ttl       time.Duration
	final     bool // no other name is to be tried
}

func (l lookup) target(ctx context.Context, t target) (found, error) {
	result := found{kind: resolve.DoesNotExist, ttl: longest}
	if t.srv != "" {
		f, err := l.first(ctx, t.srv, t.complete, l.services)
		l.counts.services.count(ctx, f, err)
		if err != nil || f.final {
			return f, err
		}
		result = result.or(f)
	}
	if t.host != "" && l.local != nil {
		return l.ofFamilies(*l.local).at(t.port), nil
	}
	if t.host != "" {
		f, err := l.first(ctx, t.host, t.complete, func(ctx context.Context, name string) (found, error) {
			h, err := l.addresses(ctx, name, l.families)
			return h.at(t.port), err
		})
		l.counts.hosts.count(ctx, f, err)
		if err != nil || f.final {
			return f, err
		}
		result = result.or(f)
	}
	return result, nil
}

// first looks up the names that name stands for, until one is final.
func (l lookup) first(
	ctx context.Context, name string, complete bool, look func(context.Context, string) (found, error),
) (found, error) {
	result := found{kind: resolve.DoesNotExist, ttl: longest}
	for _, name := range l.search.names(name, complete) {
		f, err := look(ctx, name)
		switch {
		case err != nil:
			return found{}, err
		case f.final:
			return f, nil
		}
		result = result.or(f)
	}
	return result, nil
}

// or is what two names amount to, neither of which has endpoints.
func (f found) or(o found) found {
	if o.kind == resolve.Empty {
		f.kind = resolve.Empty
	}
	f.ttl = min(f.ttl, o.ttl)
	return f
}

// at makes endpoints of addresses.
func (h hosts) at(port uint16) found {
	f := found{kind: resolve.DoesNotExist, ttl: h.ttl}
	if h.exists {
		f.kind = resolve.Empty
	}
	for _, addr := range h.addrs {
		f.endpoints = append(f.endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr, port)}})
	}
	if len(f.endpoints) > 0 {
		f.kind, f.final = resolve.Replace, true
	}
	slices.SortFunc(f.endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	f.endpoints = slices.CompactFunc(f.endpoints, resolve.Endpoint.Equal)
	return f
}

// addresses asks for all families at once. All must answer.
func (l lookup) addresses(ctx context.Context, name string, families []dnsmessage.Type) (hosts, error) {
	answers := make([]answer, len(families))
	group, ctx := errgroup.WithContext(ctx)
	for i, kind := range families {
		group.Go(func() (err error) {
			answers[i], err = l.ask(ctx, name, kind)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return hosts{}, err
	}
	h := answers[0].hosts
	for _, a := range answers[1:] {
		h = h.and(a.hosts)
	}
	return h, nil
}
