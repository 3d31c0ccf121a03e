package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Certificate manages a webhook's certificate. All replicas share it in a Secret and run the
// same loop. They do not need a leader, because the API server rejects conflicting writes to the
// Secret.
//
// Before the webhook uses a new certificate, it stays in the caBundle for the duration Overlap.
// Afterwards the old one stays there equally long, so that no API server sees a certificate that
// it does not trust yet or any more.
type Certificate struct {
	Client        kubernetes.Interface
	Namespace     string        // the Secret's namespace
	Secret        string        // name of the Secret
	Configuration string        // name of the MutatingWebhookConfiguration, or the ValidatingWebhookConfiguration
	Validating    bool          // which of the two it is
	Names         []string      // DNS names and IP addresses of the webhook
	Lifetime      time.Duration // a new certificate's validity; it is renewed after 2/3 of this time
	Overlap       time.Duration // how long two certificates are trusted together; at least twice Interval
	Interval      time.Duration // between two reads of the Secret and the configuration
	Log           *slog.Logger

	served  atomic.Pointer[tls.Certificate]
	bundle  []byte    // caBundle that the last round wrote or found
	trusted time.Time // when the configuration first had this bundle
}

// DefaultLifetime is that of the certificates in linkerd's chart. In the last third of it, when a
// certificate is renewed, linkerd check does not warn yet.
const DefaultLifetime = 365 * 24 * time.Hour

// Get returns the current certificate. It can be used as tls.Config.GetCertificate.
// The certificate is missing until the first round of sync has succeeded.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := c.served.Load(); cert != nil {
		return cert, nil
	}
	return nil, errors.New("the certificate has not been read yet")
}

// Ready reports whether the webhook serves a certificate that the API server trusts.
func (c *Certificate) Ready() bool { return c.served.Load() != nil }

// Run reads, renews and publishes the certificate until ctx ends, once per Interval. Errors are
// logged, but not the same one twice in a row.
func (c *Certificate) Run(ctx context.Context) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	// failed is the text of the last error, so that a lasting problem is logged once.
	failed := ""
	for {
		switch err := c.sync(ctx, time.Now()); {
		// The order matters: if ctx has ended, the error is only its consequence.
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			c.Log.WarnContext(ctx, "the certificate could not be synchronized", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// maxRounds is how often one call of sync writes the Secret at most.
const maxRounds = 5

// sync does one round: it reads the Secret, writes the caBundle, and serves the current
// certificate. If [state.step] returns a different state, sync writes it to the Secret and starts
// over.
func (c *Certificate) sync(ctx context.Context, now time.Time) error {
	// Another replica may write in between. The state is then read again.
	for range maxRounds {
		secret, s, err := c.read(ctx)
		if err != nil {
			return err
		}
		// The API server must trust a certificate before it is served.
		if cert := s.usable(c.Names, now); cert != nil {
			if err := c.publish(ctx, s.bundle(), now); err != nil {
				return err
			}
			c.served.Store(cert)
		}
		// step decides what to do next, depending on what the Secret contains and how long it has been trusted.
		next, err := s.step(c.Names, now, c.trusted, c.Lifetime, c.Overlap)
		if err != nil {
			return err
		}
		// Nothing has to change.
		if bytes.Equal(next.bundle(), s.bundle()) && bytes.Equal(next.current.cert, s.current.cert) {
			return nil
		}
		secret.Data = next.data()
		// A conflict means that another replica was faster. Its state is read in the next round.
		if err := c.write(ctx, secret); err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("secret %s: %w", c.Secret, err)
		}
	}
	return errors.New("another program changes the Secret all the time")
}

// read returns the Secret and its state. If the Secret is invalid or does not exist, the state is
// empty; in the latter case, the Secret is a new one for [Certificate.write].
func (c *Certificate) read(ctx context.Context) (*corev1.Secret, state, error) {
	secret, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, c.Secret, metav1.GetOptions{})
	// A new Secret has no ResourceVersion, by which write recognizes it.
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: c.Secret, Namespace: c.Namespace}, Type: corev1.SecretTypeTLS,
		}, state{}, nil
	case err != nil:
		return nil, state{}, fmt.Errorf("secret %s: %w", c.Secret, err)
	}
	// An invalid Secret would stay invalid, so it is treated as empty.
	s, err := newState(secret.Data)
	if err != nil {
		c.Log.WarnContext(ctx, "the Secret is invalid and is replaced", "secret", c.Secret, "error", err)
		return secret, state{}, nil
	}
	return secret, s, nil
}

// write updates the Secret, or creates it if it did not exist when it was read.
func (c *Certificate) write(ctx context.Context, secret *corev1.Secret) (err error) {
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	if secret.ResourceVersion == "" {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err == nil {
		c.Log.InfoContext(ctx, "the certificates changed", "secret", c.Secret)
	}
	return err
}

// publish writes bundle to the caBundle of each webhook in the configuration. c.trusted becomes
// now if that changes anything or bundle differs from the last call's, because that is when the
// API server begins to trust it.
func (c *Certificate) publish(ctx context.Context, bundle []byte, now time.Time) (err error) {
	admission := c.Client.AdmissionregistrationV1()
	// The two kinds of configurations have different types for the same fields.
	var changed bool
	if c.Validating {
		changed, err = setBundle(ctx, admission.ValidatingWebhookConfigurations(), c.Configuration, bundle, validatingClients)
	} else {
		changed, err = setBundle(ctx, admission.MutatingWebhookConfigurations(), c.Configuration, bundle, mutatingClients)
	}
	if err != nil {
		return fmt.Errorf("webhook configuration %s: %w", c.Configuration, err)
	}
	if changed {
		c.Log.InfoContext(ctx, "the caBundle changed", "configuration", c.Configuration)
	}
	// bundle is nil after a restart, so the time then counts from the start.
	if changed || !bytes.Equal(bundle, c.bundle) {
		c.bundle = bundle
		c.trusted = now
	}
	return nil
}

// configurations is the API for one of the two kinds of webhook configurations.
type configurations[C any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (C, error)
	Update(ctx context.Context, config C, options metav1.UpdateOptions) (C, error)
}

// setBundle sets the caBundle of the clients in a configuration, and reports whether that changed
// anything.
func setBundle[C any](
	ctx context.Context, api configurations[C], name string, bundle []byte, clients func(C) []*admissionregistrationv1.WebhookClientConfig,
) (changed bool, err error) {
	config, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	// A configuration may contain several webhooks, all of which use this certificate.
	for _, client := range clients(config) {
		if !bytes.Equal(client.CABundle, bundle) {
			client.CABundle = bundle
			changed = true
		}
	}
	// Without a change, the write would only cause other watchers to work.
	if changed {
		_, err = api.Update(ctx, config, metav1.UpdateOptions{})
	}
	return changed, err
}

// mutatingClients returns how the API server reaches the webhooks of c, so that setBundle can change it.
func mutatingClients(c *admissionregistrationv1.MutatingWebhookConfiguration) (all []*admissionregistrationv1.WebhookClientConfig) {
	for i := range c.Webhooks {
		all = append(all, &c.Webhooks[i].ClientConfig)
	}
	return all
}

// validatingClients returns how the API server reaches the webhooks of c, so that setBundle can change it.
func validatingClients(c *admissionregistrationv1.ValidatingWebhookConfiguration) (all []*admissionregistrationv1.WebhookClientConfig) {
	for i := range c.Webhooks {
		all = append(all, &c.Webhooks[i].ClientConfig)
	}
	return all
}
