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

// Identity is a name and the certificate that proves it, which [Identity.Run]
// keeps fresh. It is safe for concurrent use.
type Identity struct {
	cfg       Config // with its defaults
	roots     *x509.CertPool
	renews    bool                        // or is Static
	certifies atomic.Bool                 // now
	current   atomic.Pointer[certificate] // nil before the first one
	certified chan struct{}               // closed by the first one

	mu        sync.Mutex
	refreshes int
	failures  int       // in a row
	err       error     // of the last request, nil if it went well
	next      time.Time // when the CA is asked again
}

// certificate is one that was checked.
type certificate struct {
	tls.Certificate

	expires time.Time // it, or one that vouches for it
}

// New returns an Identity that has no certificate yet: run [Identity.Run]
// to get it. The error says all that is wrong with c.
func New(c Config) (*Identity, error) {
	c = c.withDefaults()
	roots, err := parseRoots(c.Roots)
	if err = errors.Join(c.check(), prefix("trust anchors", err)); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return &Identity{cfg: c, roots: roots, renews: true, certified: make(chan struct{})}, nil
}

// Static returns an Identity with a certificate that stays, for those who have
// their own ways of getting one, and for tests. Its name is the first of the
// certificate, its server name the first that is DNS-like, or "" if there is none.
// The certificate must be one that others with the same roots believe, and its
// PrivateKey the [crypto.Signer] that it is for. It is not renewed; a new one needs
// a new Identity.
func Static(cert tls.Certificate, roots *x509.CertPool) (*Identity, error) {
	if roots == nil || len(cert.Certificate) == 0 || cert.PrivateKey == nil {
		return nil, errors.New("identity: a certificate, its key and roots are needed")
	}
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("identity: a %T cannot sign", cert.PrivateKey)
	}
	chain, err := parseChain(cert.Certificate[0], cert.Certificate[1:])
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if !sameKey(chain[0].PublicKey, key.Public()) {
		return nil, errors.New("identity: the certificate is for another key")
	}
	names := caller.Names(chain[0].Extensions)
	if len(names) == 0 {
		return nil, errors.New("identity: the certificate has no name, DNS-like or URI")
	}
	i := &Identity{cfg: Config{Name: names[0]}, roots: roots, certified: make(chan struct{})}
	for _, name := range names {
		if caller.IsDNS(name) {
			i.cfg.ServerName = name
			break
		}
	}
	i.cfg = i.cfg.withDefaults()
	expires, err := i.verifyOwn(chain)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	i.use(&certificate{cert, expires})
	return i, nil
}

// Name returns the identity.
func (i *Identity) Name() string { return i.cfg.Name }

// ServerName returns the TLS server name to answer to, which those who connect
// ask for. It is "" for an identity of [Static] whose names are URIs alone.
func (i *Identity) ServerName() string { return i.cfg.ServerName }

// use makes cert what handshakes show from now on.
func (i *Identity) use(cert *certificate) {
	i.cfg.Instruments.Expiration.Set(float64(cert.expires.Unix()))
	if i.current.Swap(cert) == nil {
		close(i.certified)
	}
}

// Ready waits until there is a certificate. From then on it returns nil, even
// when one has expired since: as in linkerd's proxy, ready is not taken back.
// With a ctx that is done it only looks. The error, a [layer.Error], matches the
// cause of ctx, and says why the CA gave nothing yet.
func (i *Identity) Ready(ctx context.Context) error {
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

// errNone says that there is no certificate yet.
var errNone = errors.New("there is no certificate yet")

// present returns the certificate for a handshake, or why there is none that
// could be shown.
func (i *Identity) present() (*tls.Certificate, error) {
	cert := i.current.Load()
	if cert == nil {
		return nil, &layer.Error{Layer: "identity", Target: i.cfg.Name, Err: errNone}
	}
	if time.Now().After(cert.expires) {
		i.mu.Lock()
		defer i.mu.Unlock()
		return nil, &layer.Error{
			Layer: "identity", Target: i.cfg.Name, Reason: "the certificate expired at " + clock(cert.expires), Err: i.err,
		}
	}
	return &cert.Certificate, nil
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Describe returns the names, when the certificate expires and is renewed, how
// many there were, and how the last request failed, if it did.
func (i *Identity) Describe() layer.Node {
	n := layer.Node{Name: "identity", State: layer.State{{Key: "name", Value: i.cfg.Name}}}
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
