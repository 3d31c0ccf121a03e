package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// Identity is a name with the certificate that proves it. [Identity.Run] renews the certificate. An
// Identity is safe for concurrent use.
type Identity struct {
	cfg       Config // configuration, with defaults
	roots     *x509.CertPool
	renews    bool                        // Run may be called; false for Static
	certifies atomic.Bool                 // Run is running
	current   atomic.Pointer[certificate] // current certificate; nil before the first
	certified chan struct{}               // closed after the first certificate
	chains    verifiedChains              // chains of peers that were verified

	mu        sync.Mutex
	refreshes int       // number of received certificates
	failures  int       // failed requests since the last success
	err       error     // error of the last request; nil after a success
	next      time.Time // time of the next request
}

// certificate is a verified certificate with its private key.
type certificate struct {
	tls.Certificate

	// The end of the validity: the earliest of the times until which the chain is valid for servers and
	// for clients, and of the CA's ValidUntil. Later handshakes fail.
	expires time.Time
}

// New returns an Identity without a certificate. [Identity.Run] requests one. New returns
// an error that lists all problems of c.
func New(c Config) (*Identity, error) {
	c = c.withDefaults()
	roots, err := parseRoots(c.Roots)
	// All problems are reported together.
	if err = errors.Join(c.check(), prefix("trust anchors", err)); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return &Identity{cfg: c, roots: roots, renews: true, certified: make(chan struct{})}, nil
}

// Static returns an Identity with a fixed certificate. The Identity's name is the first name in
// the certificate, and its TLS server name the first DNS-like one, or "" if there are only URIs.
// The certificate must be valid under roots, and its PrivateKey must implement [crypto.Signer].
func Static(cert tls.Certificate, roots *x509.CertPool) (*Identity, error) {
	if roots == nil || len(cert.Certificate) == 0 || cert.PrivateKey == nil {
		return nil, errors.New("identity: Static needs a certificate, its key and roots")
	}
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("identity: a %T cannot sign", cert.PrivateKey)
	}
	chain, err := parseChain(cert.Certificate[0], cert.Certificate[1:])
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	// A key for another certificate would let every handshake fail.
	if !sameKey(chain[0].PublicKey, key.Public()) {
		return nil, errors.New("identity: the certificate is for another key")
	}
	names := caller.Names(chain[0].Extensions)
	if len(names) == 0 {
		return nil, errors.New("identity: the certificate has no name, DNS-like or URI")
	}
	i := &Identity{cfg: Config{Name: names[0]}, roots: roots, certified: make(chan struct{})}
	// The first name that can be a TLS server name.
	for _, name := range names {
		if caller.IsDNS(name) {
			i.cfg.ServerName = name
			break
		}
	}
	// A Static Identity needs no other setting.
	i.cfg = i.cfg.withDefaults()
	expires, err := i.verifyOwn(chain)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	i.use(&certificate{cert, expires})
	return i, nil
}

// Name returns the identity's name.
func (i *Identity) Name() string { return i.cfg.Name }

// ServerName returns the TLS server name. It is "" for a [Static] Identity whose names are all
// URIs.
func (i *Identity) ServerName() string { return i.cfg.ServerName }

// use makes cert the certificate for new handshakes and records its expiration. The first one makes the
// Identity ready.
func (i *Identity) use(cert *certificate) {
	i.cfg.Instruments.Expiration.Set(float64(cert.expires.Unix()))
	if i.current.Swap(cert) == nil {
		close(i.certified)
	}
}

// Ready waits for the first certificate. Afterwards it always returns nil, even if the
// certificate has expired, as in linkerd's proxy. If ctx ends first, the error is a [layer.Error]
// that matches the cause of ctx and wraps the error from the last request.
func (i *Identity) Ready(ctx context.Context) error {
	// First without ctx, because a select with several ready cases chooses at random.
	select {
	case <-i.certified:
		return nil
	default:
	}
	select {
	case <-i.certified:
		return nil
	case <-ctx.Done():
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return &layer.Error{
		Layer: "identity", Target: i.cfg.Name, Kind: context.Cause(ctx), Reason: "no certificate yet", Err: i.err,
	}
}

var errNoCertificate = errors.New("no certificate yet") // the error of a handshake before the first certificate

// handshakeCertificate returns the current certificate for a handshake. It returns an
// error before the first certificate, and if the current certificate has expired.
func (i *Identity) handshakeCertificate() (*tls.Certificate, error) {
	cert := i.current.Load()
	if cert == nil {
		return nil, &layer.Error{Layer: "identity", Target: i.cfg.Name, Err: errNoCertificate}
	}
	// A certificate that has expired would only fail at the peer, with a less helpful error.
	if time.Now().After(cert.expires) {
		i.mu.Lock()
		defer i.mu.Unlock()
		return nil, &layer.Error{
			Layer: "identity", Target: i.cfg.Name, Reason: "the certificate expired at " + clock(cert.expires), Err: i.err,
		}
	}
	return &cert.Certificate, nil
}

// clock formats t for logs and errors.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Describe shows the names, the expiration, the number of received certificates and the
// last failure.
func (i *Identity) Describe() layer.Node {
	n := layer.Node{Name: "identity", State: layer.State{{Key: "name", Value: i.cfg.Name}}}
	// add appends one attribute. Those without information are left out.
	add := func(key string, value any) { n.State = append(n.State, layer.Attr{Key: key, Value: value}) }
	if i.cfg.ServerName != i.cfg.Name {
		add("server_name", i.cfg.ServerName)
	}
	if cert := i.current.Load(); cert != nil {
		add("expires", clock(cert.expires))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	add("refreshes", i.refreshes)
	if !i.next.IsZero() {
		add("renew_in", max(0, time.Until(i.next).Round(time.Second)))
	}
	if i.err != nil {
		add("failures", i.failures)
		add("error", i.err.Error())
	}
	return n
}
