package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Registry selects a resolver by the scheme of the target. It is itself a Resolver and
// safe for concurrent use. The zero value has no schemes and is ready to use; it must not
// be copied.
//
// A target is "scheme://rest". A scheme is a letter, then letters, digits, "+", "-" and
// "."; its case does not matter. The resolver gets the rest unchanged: "web:80" for
// "dns://web:80", "/etc/web" for "file:///etc/web", "" for "static://". A target of
// another form, such as "web:80", has no scheme.
type Registry struct {
	mu       sync.RWMutex
	byScheme map[string]Resolver
	other    Resolver
}

// NewRegistry returns a Registry without schemes.
func NewRegistry() *Registry { return &Registry{} }

// Register sets the resolver of a scheme, such as "dns". It returns an error if the
// scheme is invalid or has a resolver, or if r is nil. It does not change open streams.
func (g *Registry) Register(scheme string, r Resolver) error {
	if !isScheme(scheme) {
		return fmt.Errorf("resolve: register %q: not a scheme: "+
			`write a letter, then letters, digits, "+", "-" or ".", without "://"`, scheme)
	}
	if r == nil {
		return fmt.Errorf("resolve: register %q: no resolver", scheme)
	}
	scheme = strings.ToLower(scheme)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byScheme[scheme] != nil {
		return fmt.Errorf("resolve: register %q: has a resolver already", scheme)
	}
	if g.byScheme == nil {
		g.byScheme = make(map[string]Resolver)
	}
	g.byScheme[scheme] = r
	return nil
}

// Default sets the resolver of targets without a known scheme. It gets the whole target.
// The default is nil: none.
func (g *Registry) Default(r Resolver) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.other = r
}

// Schemes returns the known schemes in lower case and sorted.
func (g *Registry) Schemes() []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.Sorted(maps.Keys(g.byScheme))
}

// Resolve resolves the rest of target with the resolver of its scheme. Without one the
// only item is an error that matches [ErrUnresolvable] and lists the known schemes.
func (g *Registry) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		r, rest, err := g.choose(target)
		if err != nil {
			if ctx.Err() == nil {
				yield(Update{}, err)
			}
			return
		}
		r.Resolve(ctx, rest)(yield)
	}
}

// choose returns a resolver and its target.
func (g *Registry) choose(target string) (Resolver, string, error) {
	scheme, rest, ok := splitTarget(target)
	g.mu.RLock()
	r, other := g.byScheme[scheme], g.other
	g.mu.RUnlock()
	switch {
	case ok && r != nil:
		return r, rest, nil
	case other != nil:
		return other, target, nil
	}
	why := errors.New("no scheme")
	if ok {
		why = fmt.Errorf("unknown scheme %q", scheme)
	}
	known := "none is known"
	if schemes := g.Schemes(); len(schemes) > 0 {
		known = "known are " + strings.Join(schemes, "://, ") + "://"
	}
	return nil, "", fmt.Errorf("resolve %q: %w; %s: %w", target, why, known, ErrUnresolvable)
}

// splitTarget splits "scheme://rest". scheme is in lower case.
func splitTarget(target string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(target, "://")
	if !ok || !isScheme(scheme) {
		return "", "", false
	}
	return strings.ToLower(scheme), rest, true
}

// isScheme implements section 3.1 of RFC 3986.
func isScheme(s string) bool {
	for n, c := range []byte(s) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		other := c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'
		if !letter && (n == 0 || !other) {
			return false
		}
	}
	return s != ""
}
