package static

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"

	"github.com/gotower/gotower/resolve"
)

// Resolver resolves targets from a table in memory. The zero value has an empty table and is
// ready to use. It is safe for concurrent use, need not be closed, and must not be copied.
type Resolver struct {
	mu      sync.Mutex
	targets map[string]*entry
}

// entry is a target that was set, or that streams are waiting for.
type entry struct {
	update  resolve.Update
	changed chan struct{} // closed when update is replaced
	streams int
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

// Set replaces the endpoints of a target. Without endpoints, the target exists and is
// empty. Streams of the target yield the change; Set does not wait for them. It panics
// if an endpoint has no valid address: use [Endpoints] for addresses that a user has
// written.
func (r *Resolver) Set(target string, endpoints ...resolve.Endpoint) {
	for i, e := range endpoints {
		if !e.Addr.IsValid() {
			panic(fmt.Sprintf("static: target %q: endpoint %d of %d has no valid address", target, i+1, len(endpoints)))
		}
	}
	u := resolve.Update{Kind: resolve.Replace, Endpoints: slices.Clone(endpoints)}
	if len(endpoints) == 0 {
		u = resolve.Update{Kind: resolve.Empty}
	}
	r.change(target, u)
}

// Delete removes a target. Streams of the target yield that it does not exist, and continue.
func (r *Resolver) Delete(target string) {
	r.change(target, resolve.Update{Kind: resolve.DoesNotExist})
}

func (r *Resolver) change(target string, u resolve.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(target)
	e.update = u
	close(e.changed)
	e.changed = make(chan struct{})
	r.deleteUnused(target, e)
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends
// or the consumer breaks. It never yields an error. A slow consumer gets only the
// latest change. A target that has not been set does not exist.
func (r *Resolver) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		e := r.enter(target)
		defer r.leave(target, e)
		for ctx.Err() == nil {
			u, changed := r.look(e)
			if !yield(u, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

func (r *Resolver) enter(target string) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(target)
	e.streams++
	return e
}

// look returns the update of e and the channel that is closed when it is replaced.
func (r *Resolver) look(e *entry) (resolve.Update, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := e.update
	u.Endpoints = slices.Clone(u.Endpoints) // because the consumer may modify it
	return u, e.changed
}

func (r *Resolver) leave(target string, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.streams--
	r.deleteUnused(target, e)
}

// entry returns the entry of target. It creates the entry if necessary. The caller must
// hold mu.
func (r *Resolver) entry(target string) *entry {
	e := r.targets[target]
	if e == nil {
		if r.targets == nil {
			r.targets = make(map[string]*entry)
		}
		e = &entry{update: resolve.Update{Kind: resolve.DoesNotExist}, changed: make(chan struct{})}
		r.targets[target] = e
	}
	return e
}

// deleteUnused deletes e if the target does not exist and has no stream, because names
// that were only resolved must not accumulate. The caller must hold mu.
func (r *Resolver) deleteUnused(target string, e *entry) {
	if e.streams == 0 && e.update.Kind == resolve.DoesNotExist {
		delete(r.targets, target)
	}
}

// Endpoints parses addresses of the form "10.0.0.1:80" or "[fd00::1]:80". The other
// fields of the endpoints are zero. The error has each invalid address and the reason:
// a host name, a missing port, port 0, or the unspecified address.
func Endpoints(addrs ...string) ([]resolve.Endpoint, error) {
	var errs []error
	endpoints := make([]resolve.Endpoint, 0, len(addrs))
	for _, s := range addrs {
		addr, err := parse(s)
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

func parse(s string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(s)
	switch {
	case err == nil && addr.Port() == 0:
		return addr, errors.New("port 0 cannot be connected to")
	case err == nil && addr.Addr().Unmap().WithZone("").IsUnspecified():
		return addr, errors.New("the unspecified address is for listening: write the address to connect to")
	case err == nil:
		return addr, nil
	}
	if _, bare := netip.ParseAddr(s); bare == nil {
		return addr, errors.New("no port: write 10.0.0.1:80 or [fd00::1]:80")
	}
	return addr, fmt.Errorf("not an IP address with a port: %w", err)
}
