package kit

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// instanceLabel is the label of an endpoint with its instance's text, if that is not its address.
const instanceLabel = "instance"

// Instance returns e's instance, as it was registered, for a go-kit factory.
func Instance(e resolve.Endpoint) string {
	if text, ok := e.Labels[instanceLabel]; ok {
		return text
	}
	return e.Addr.String()
}

// Opaque is a function for [WithParse] that accepts any text, for go-kit's factories, which connect by
// themselves: each instance is one endpoint, and nothing is looked up. An IP address with a port stays
// the endpoint's address. For any other text, the address only identifies it: it is one in 100::/64, to
// which nothing can connect (RFC 6666), made from the text's hash. [Instance] returns the text.
func Opaque(instance string) (resolve.Endpoint, error) {
	if e, err := parseAddress(instance); err == nil {
		return e, nil
	}
	if instance == "" {
		return resolve.Endpoint{}, errors.New("the text is empty")
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(instance))
	// The prefix 100::/64 in the first eight bytes, followed by the hash.
	sum := hash.Sum([]byte{0x01, 0x00, 0, 0, 0, 0, 0, 0})
	return resolve.Endpoint{
		ID:     resolve.ID{Addr: netip.AddrPortFrom(netip.AddrFrom16([16]byte(sum)), 1)},
		Labels: map[string]string{instanceLabel: instance},
	}, nil
}

// name is what must be looked up for an instance that is a name or a URL with one.
type name struct {
	target     string // host and port
	serverName string // for https
}

// parseName parses "host:port" or an http or https URL.
func parseName(text string) (name, error) {
	n := name{target: text}
	// A text such as "web:80" parses as a URL with the scheme web, and so is not one of these.
	if u, err := url.Parse(text); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		// Without a port in the URL, it is the default one of the scheme.
		port := u.Port()
		switch {
		case port != "":
		case u.Scheme == "https":
			port = "443"
		default:
			port = "80"
		}
		// For https, the host of the URL is also the name in the server's certificate.
		if n.target = net.JoinHostPort(u.Hostname(), port); u.Scheme == "https" {
			n.serverName = u.Hostname()
		}
	}
	if _, _, err := net.SplitHostPort(n.target); err != nil || dns.Validate(n.target) != nil {
		return n, errors.New("neither an address, a name with a port nor a URL: register one of these, or set kit.WithParse")
	}
	return n, nil
}

// names looks up the names in one stream's instances, and follows their changes.
type names struct {
	ctx      context.Context //nolint:containedctx // of one stream
	resolver resolve.Resolver
	changed  chan struct{} // has one element after a change

	mu       sync.Mutex
	followed map[string]*followed // by instance
	running  sync.WaitGroup
}

// followed holds the addresses of one name.
type followed struct {
	name   name
	cancel context.CancelFunc
	set    resolve.Set
	err    error // not reported yet; may be nil
}

// newNames returns names without any name yet. The look-ups end with ctx, which is that of the stream,
// or with end.
func newNames(ctx context.Context, r resolve.Resolver) *names {
	return &names{ctx: ctx, resolver: r, changed: make(chan struct{}, 1), followed: make(map[string]*followed)}
}

// follow begins to follow the given instances, and ends to follow all others.
func (n *names) follow(targets map[string]name) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Names in both lists keep their look-up and addresses.
	for text, f := range n.followed {
		if _, ok := targets[text]; !ok {
			f.cancel()
			delete(n.followed, text)
		}
	}
	for text, name := range targets {
		if n.followed[text] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(n.ctx)
		f := &followed{name: name, cancel: cancel}
		n.followed[text] = f
		n.running.Go(func() { n.run(ctx, f) })
	}
}

// run keeps the addresses of one name up to date until ctx ends. It runs on its own goroutine.
func (n *names) run(ctx context.Context, f *followed) {
	// The resolver reconnects by itself. The range ends with ctx, or if the name cannot be resolved.
	for update, err := range n.resolver.Resolve(ctx, f.name.target) {
		if ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		// An error leaves the set as it is. An update ends an error that has not been reported yet.
		if f.err = err; err == nil {
			f.set.Apply(update)
		}
		n.mu.Unlock()
		// The channel has one element at most: several changes wake the stream once.
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

// endpoints returns the endpoints for all names, and the errors since it was last called. pending
// reports whether a name is still unanswered.
func (n *names) endpoints() (endpoints []resolve.Endpoint, errs []error, pending bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// In the order of the instances, so that equal events give equal updates.
	for _, text := range slices.Sorted(maps.Keys(n.followed)) {
		f := n.followed[text]
		if f.err != nil {
			errs = append(errs, fmt.Errorf("instance %q: %w", text, f.err))
			f.err = nil
		}
		pending = pending || f.set.State() == resolve.StatePending
		for _, e := range f.set.Endpoints() {
			// A server name of the name's own resolver wins over that of the URL.
			if e.ServerName == "" {
				e.ServerName = f.name.serverName
			}
			// The instance's label first: one that the resolver has set wins.
			labels := map[string]string{instanceLabel: text}
			maps.Copy(labels, e.Labels)
			e.Labels = labels
			endpoints = append(endpoints, e)
		}
	}
	return endpoints, errs, pending
}

// end ends all look-ups and waits for them.
func (n *names) end() {
	// Without names to follow, all look-ups are canceled.
	n.follow(nil)
	n.running.Wait()
}
