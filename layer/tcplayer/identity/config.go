package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// Config is what an [Identity] is made of. [Load] reads one from files.
type Config struct {
	Name       string                 // its own: DNS-like, or a SPIFFE ID
	ServerName string                 // TLS server name that it answers to; Name, if that is DNS-like
	Roots      []byte                 // trust anchors: certificates, PEM
	Key        crypto.Signer          // ECDSA P-256, to be understood by linkerd's proxies; see Request
	CSR        []byte                 // certificate signing request for Name and Key, DER; see Request
	Token      func() ([]byte, error) // proof for the CA, asked for before each request; see TokenFile

	// A certificate is renewed after 70 % of the life that it has left, but no
	// sooner than MinRefresh, 10 s, and no later than MaxRefresh, 24 h.
	MinRefresh, MaxRefresh time.Duration

	Timeout     time.Duration // for the CA to answer; 10 s
	Backoff     layer.Backoff // after it did not, or not well; layer.DefaultBackoff
	Log         *slog.Logger  // nil for none
	Instruments Instruments
}

// Instruments are where an [Identity] writes. What is nil is not recorded.
type Instruments struct {
	Expiration metrics.Gauge   // when the certificate expires: seconds since 1970
	Refreshes  metrics.Counter // certificates got, the first one included
}

func (i Instruments) orDiscard() Instruments {
	if i.Expiration == nil {
		i.Expiration = discard.NewGauge()
	}
	if i.Refreshes == nil {
		i.Refreshes = discard.NewCounter()
	}
	return i
}

// withDefaults fills in what was not said.
func (c Config) withDefaults() Config {
	if c.ServerName == "" && caller.IsDNS(c.Name) {
		c.ServerName = c.Name
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&c.MinRefresh, 10 * time.Second}, {&c.MaxRefresh, 24 * time.Hour}, {&c.Timeout, 10 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	c.Backoff = c.Backoff.OrDefault()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Instruments = c.Instruments.orDiscard()
	return c
}

// check returns all that is wrong with c, which has its defaults.
func (c Config) check() error {
	errs := []error{caller.Check(c.Name), c.checkServerName(), c.checkRequest()}
	if c.Token == nil {
		errs = append(errs, errors.New("there is no Token to show to the CA"))
	}
	switch {
	case c.MinRefresh < 0 || c.Timeout < 0:
		errs = append(errs, errors.New("a time is less than 0"))
	case c.MaxRefresh < c.MinRefresh:
		errs = append(errs, fmt.Errorf("the latest refresh, %v, is before the soonest, %v", c.MaxRefresh, c.MinRefresh))
	}
	return errors.Join(errs...)
}

func (c Config) checkServerName() error {
	switch {
	case c.ServerName == "" && caller.IsURI(c.Name):
		return fmt.Errorf("no TLS server name goes with the identity %s: a URI needs one, such as web.default", c.Name)
	case c.ServerName != "" && !caller.IsDNS(c.ServerName):
		return fmt.Errorf("the TLS server name %q is no DNS name", c.ServerName)
	}
	return nil
}

// checkRequest finds out what the CA would otherwise, or worse, would not.
func (c Config) checkRequest() error {
	if c.Key == nil {
		return errors.New("there is no Key")
	}
	csr, err := x509.ParseCertificateRequest(c.CSR)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return fmt.Errorf("the certificate signing request: %w", err)
	}
	if !sameKey(csr.PublicKey, c.Key.Public()) {
		return errors.New("the certificate signing request is for another key")
	}
	if names := caller.Names(csr.Extensions); !has(names, c.Name) {
		return fmt.Errorf("the certificate signing request is for %s, not for %s", list(names), c.Name)
	}
	return nil
}

func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && key.Equal(b)
}
