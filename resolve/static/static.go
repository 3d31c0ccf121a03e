package static

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/resolve"
)

// Resolver resolves targets from a table in memory. The zero value is empty and ready to use. It
// is safe for concurrent use, need not be closed, and must not be copied.
type Resolver struct {
	mu      sync.Mutex
	targets map[string]*resolve.Update // by target; each change stores a new pointer
	changed notify.Broadcast           // notifies the streams of all targets
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver with the given targets, which Set and Delete can change. It
// copies the slices, but not the labels, which must not be modified. A target without
// endpoints exists and is empty. New panics if an endpoint has no valid address.
func New(targets map[string][]resolve.Endpoint) *Resolver {
	r := &Resolver{}
	for target, endpoints := range targets {
		r.Set(target, endpoints...)
	}
	return r
}

// Set replaces a target's endpoints. Without endpoints, the target exists and is empty. The
// target's streams yield the change, but Set does not wait for that. Set panics if an endpoint
// has no valid address: use [Endpoints] for addresses that a user has written.
func (r *Resolver) Set(target string, endpoints ...resolve.Endpoint) {
	// Checked before anything is stored, so that a panic leaves the table as it was.
	for i, e := range endpoints {
		if !e.Addr.IsValid() {
			panic(fmt.Sprintf("static: target %q: endpoint %d of %d has no valid address", target, i+1, len(endpoints)))
		}
	}
	u := resolve.Update{Kind: resolve.Replace, Endpoints: slices.Clone(endpoints)}
	if len(endpoints) == 0 {
		u = resolve.Update{Kind: resolve.Empty}
	}
	r.mu.Lock()
	if r.targets == nil {
		r.targets = make(map[string]*resolve.Update)
	}
	r.targets[target] = &u
	r.mu.Unlock()
	// All streams wake up. Those of other targets find their pointer unchanged and wait on.
	r.changed.Wake()
}

// Delete removes a target. Streams of the target yield that it does not exist, and continue.
func (r *Resolver) Delete(target string) {
	r.mu.Lock()
	delete(r.targets, target)
	r.mu.Unlock()
	// The streams compare with nil and yield DoesNotExist.
	r.changed.Wake()
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends
// or the consumer breaks. It never yields an error. A slow consumer gets only the
// latest change. A target that has not been set does not exist.
func (r *Resolver) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		for ctx.Err() == nil {
			current := r.get(target)
			u := resolve.Update{Kind: resolve.DoesNotExist}
			if current != nil {
				u = resolve.Update{Kind: current.Kind, Endpoints: slices.Clone(current.Endpoints)} // the consumer owns the slice
			}
			// Wait first checks the condition, so that a change during yield is not missed.
			if !yield(u, nil) || r.changed.Wait(ctx, func() bool { return r.get(target) != current }) != nil {
				return
			}
		}
	}
}

// get returns the last update for target, or nil if the target does not exist. Pointers can be compared
// to find out whether a target was set again.
func (r *Resolver) get(target string) *resolve.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.targets[target]
}

// Endpoints parses addresses of the form "10.0.0.1:80" or "[fd00::1]:80". It converts IPv4-mapped IPv6
// addresses to IPv4. The other endpoint fields are zero. The error names each invalid address and the
// reason, such as a host name, a missing port, port 0, or the unspecified address.
func Endpoints(addrs ...string) ([]resolve.Endpoint, error) {
	// All mistakes are collected, so that a user can correct them in one go.
	var errs []error
	endpoints := make([]resolve.Endpoint, 0, len(addrs))
	for _, s := range addrs {
		addr, err := authority.AddrPort(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("static: address %q: %w", s, err))
			continue
		}
		endpoints = append(endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return endpoints, nil
}
